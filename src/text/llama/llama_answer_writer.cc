#include "text/llama/llama_answer_writer.h"

#include <algorithm>
#include <exception>

namespace meshnet::text {
namespace {

using nlohmann::ordered_json;

// The parser recurses once a bracket, some kilobytes of stack each time.
constexpr size_t kNestingMax = 200;

// Each parse starts from the beginning of the answer. Up to this size that is cheap enough for each token; beyond it, tokens are gathered until
// they are a small part of the whole, so that a long answer costs no quadratic time.
constexpr size_t kParseEachTokenBytes = 16u << 10;
constexpr size_t kGatherShare = 512;

ordered_json ToolCallDelta(const common_chat_msg_diff& diff) {
  ordered_json call = {{"index", diff.tool_call_index}};
  if (!diff.tool_call_delta.id.empty()) {
    call["id"] = diff.tool_call_delta.id;
    call["type"] = "function";
  }
  ordered_json function = ordered_json::object();
  if (!diff.tool_call_delta.name.empty()) function["name"] = diff.tool_call_delta.name;
  function["arguments"] = diff.tool_call_delta.arguments;
  call["function"] = std::move(function);
  return {{"tool_calls", ordered_json::array({std::move(call)})}};
}

size_t CountCharacters(const std::string& bytes) {
  return static_cast<size_t>(std::count_if(bytes.begin(), bytes.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

bool IsComplete(const common_chat_tool_call& call) { return !call.name.empty() && ordered_json::accept(call.arguments); }

}  // namespace

LlamaAnswerWriter::LlamaAnswerWriter(std::shared_ptr<const AnswerPlan> plan, uint32_t index)
    : plan_(std::move(plan)), index_(index), visible_(plan_->stops), nesting_(kNestingMax) {
  if (!chat()) return;
  try {
    state_.emplace(plan_->parser);
  } catch (const std::exception&) {
    // Only a continued message is parsed here; without that first parse, its text is sent as if it were new.
    common_chat_parser_params fresh = plan_->parser;
    fresh.is_continuation = false;
    state_.emplace(fresh);
  }
}

ordered_json LlamaAnswerWriter::ChunkWith(const char* key, ordered_json value) const {
  ordered_json choice = {{"index", index_}};
  choice[key] = std::move(value);
  choice["logprobs"] = nullptr;
  choice["finish_reason"] = nullptr;
  return Chunk(plan_->identity, std::move(choice));
}

std::vector<ordered_json> LlamaAnswerWriter::Begin() {
  if (!chat()) return {};
  return {ChunkWith("delta", {{"role", "assistant"}, {"content", nullptr}})};
}

AnswerWriter::Fed LlamaAnswerWriter::Feed(const SampledToken& token) {
  Fed fed;
  if (visible_.stopped() || too_deep_ || token.end_of_generation || plan_->vocabulary->IsEndOfGeneration(token.token)) {
    fed.stopped = true;
    return fed;
  }
  if (plan_->return_tokens) tokens_.push_back(token.token);
  const bool preserved = plan_->preserved.contains(token.token);
  const std::string piece = plan_->vocabulary->Piece(token.token, preserved ? SpecialTokens::kShow : SpecialTokens::kHide);
  const size_t begin = visible_.added_bytes();
  const std::string text = visible_.Add(piece);
  Remember(token, piece, begin);
  if (plan_->parses_json && !nesting_.Add(text)) {
    too_deep_ = true;
    fed.stopped = true;
    return fed;
  }
  fed.events = Show(text, false);
  fed.stopped = visible_.stopped();
  return fed;
}

void LlamaAnswerWriter::Remember(const SampledToken& token, const std::string& piece, size_t begin) {
  if (!plan_->logprobs_wanted) return;
  Pending pending{{token, piece, 0, {}}, begin, begin + piece.size()};
  for (const TokenLogprob& other : token.top) pending.entry.top_bytes.push_back(plan_->vocabulary->Piece(other.token, SpecialTokens::kHide));
  pending_.push_back(std::move(pending));
}

void LlamaAnswerWriter::ReleaseTokens(bool last) {
  const size_t released = visible_.released_bytes();
  while (!pending_.empty()) {
    Pending& next = pending_.front();
    if (next.end > released || (next.begin == released && visible_.stopped())) {
      if (!last) return;
      // The end cut through this token, or lies before it.
      if (next.begin >= released) {
        pending_.clear();
        return;
      }
      next.entry.bytes.resize(released - next.begin);
    }
    next.entry.text_offset = shown_characters_;
    shown_characters_ += CountCharacters(next.entry.bytes);
    shown_.push_back(std::move(next.entry));
    pending_.pop_front();
  }
}

ordered_json LlamaAnswerWriter::TakeLogprobs() {
  if (!plan_->logprobs_wanted || shown_sent_ == shown_.size()) return nullptr;
  const std::span<const TokenEntry> fresh(shown_.data() + shown_sent_, shown_.size() - shown_sent_);
  shown_sent_ = shown_.size();
  return LogprobsJson(plan_->identity.kind, fresh, plan_->probability_form);
}

bool LlamaAnswerWriter::Parse(const std::string& text, bool partial, std::vector<common_chat_msg_diff>* diffs) {
  try {
    diffs->clear();
    // Filtered: a call's id and name come once, when its arguments begin.
    state_->update_chat_msg(text, partial, *diffs, true);
    return true;
  } catch (const std::exception&) {
    // The text does not (yet) fit the template's form; what the parser saw before stands.
    diffs->clear();
    return false;
  }
}

std::vector<ordered_json> LlamaAnswerWriter::ChatDeltas(bool last) {
  if (!last && (unparsed_.empty() || (parsed_bytes_ > kParseEachTokenBytes && unparsed_.size() < parsed_bytes_ / kGatherShare))) return {};
  const std::string text = std::move(unparsed_);
  unparsed_.clear();
  parsed_bytes_ += text.size();
  std::vector<common_chat_msg_diff> diffs;
  if (!Parse(text, !last, &diffs) && last && !Parse("", true, &diffs) && state_->chat_msg.empty()) {
    // Nothing of it could be understood: the client gets the text as it is.
    common_chat_msg_diff whole;
    whole.content_delta = state_->generated_text;
    state_->chat_msg.content = state_->generated_text;
    diffs.push_back(std::move(whole));
  }
  std::vector<ordered_json> deltas;
  for (const common_chat_msg_diff& diff : diffs) {
    if (!diff.reasoning_content_delta.empty()) deltas.push_back({{"reasoning_content", diff.reasoning_content_delta}});
    if (!diff.content_delta.empty()) deltas.push_back({{"content", diff.content_delta}});
    if (diff.tool_call_index != std::string::npos) deltas.push_back(ToolCallDelta(diff));
  }
  return deltas;
}

std::vector<ordered_json> LlamaAnswerWriter::Show(const std::string& text, bool last) {
  std::vector<ordered_json> events;
  if (chat()) {
    unparsed_ += text;
    for (ordered_json& delta : ChatDeltas(last)) events.push_back(ChunkWith("delta", std::move(delta)));
  } else {
    text_ += text;
    if (!text.empty()) events.push_back(ChunkWith("text", text));
  }
  ReleaseTokens(last);
  const bool tokens_left = tokens_sent_ < tokens_.size();
  // What is left at the end needs a chunk of its own; before, it waits for the next one. Token ids do not wait.
  if (events.empty() && (tokens_left || (last && plan_->logprobs_wanted && shown_sent_ < shown_.size()))) {
    events.push_back(chat() ? ChunkWith("delta", ordered_json::object()) : ChunkWith("text", ""));
  }
  if (events.empty()) return events;
  ordered_json& choice = events.back()["choices"][0];
  choice["logprobs"] = TakeLogprobs();
  if (tokens_left) {
    choice["tokens"] = std::vector<Token>(tokens_.begin() + static_cast<std::ptrdiff_t>(tokens_sent_), tokens_.end());
    tokens_sent_ = tokens_.size();
  }
  return events;
}

FinishReason LlamaAnswerWriter::Finish(bool cut) const {
  if (chat() && !state_->chat_msg.tool_calls.empty()) {
    const auto& calls = state_->chat_msg.tool_calls;
    // An agent runs what is reported as tool_calls, so a call whose arguments are not whole never is.
    if (std::all_of(calls.begin(), calls.end(), IsComplete)) return FinishReason::kToolCalls;
    return visible_.stopped() ? FinishReason::kStop : FinishReason::kLength;
  }
  return cut ? FinishReason::kLength : FinishReason::kStop;
}

std::vector<ordered_json> LlamaAnswerWriter::End(bool cut) {
  const std::string rest = visible_.Flush();
  std::vector<ordered_json> events = too_deep_ ? std::vector<ordered_json>() : Show(rest, true);
  reason_ = Finish(cut || too_deep_);
  ordered_json closing = ChunkWith(chat() ? "delta" : "text", chat() ? ordered_json::object() : ordered_json(""));
  closing["choices"][0]["finish_reason"] = Name(reason_);
  events.push_back(std::move(closing));
  return events;
}

ordered_json LlamaAnswerWriter::Choice() {
  ordered_json choice = {{"index", index_}};
  if (chat()) {
    const common_chat_msg& parsed = state_->chat_msg;
    ordered_json message = {{"role", "assistant"}};
    message["content"] = parsed.content.empty() && !parsed.tool_calls.empty() ? ordered_json() : ordered_json(parsed.content);
    if (!parsed.reasoning_content.empty()) message["reasoning_content"] = parsed.reasoning_content;
    for (const common_chat_tool_call& call : parsed.tool_calls) {
      message["tool_calls"].push_back({{"id", call.id}, {"type", "function"}, {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
    }
    choice["message"] = std::move(message);
  } else {
    choice["text"] = text_;
  }
  choice["logprobs"] = plan_->logprobs_wanted ? LogprobsJson(plan_->identity.kind, shown_, plan_->probability_form) : ordered_json();
  choice["finish_reason"] = Name(reason_);
  if (plan_->return_tokens) choice["tokens"] = tokens_;
  return choice;
}

}  // namespace meshnet::text
