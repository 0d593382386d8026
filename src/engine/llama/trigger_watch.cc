#include "engine/llama/trigger_watch.h"

#include <algorithm>
#include <cctype>
#include <climits>

#include "common.h"
#include "llama.h"
#include "protocol/sampling_limits.h"
#include "reasoning-budget.h"

namespace meshnet {
namespace {

// A pattern may look back that far, and matches no longer run of blanks.
constexpr size_t kPatternBytesMax = 1024;
constexpr size_t kKeptBytes = std::max(kPatternBytesMax, kGrammarTriggerBytesMax);

// PATTERN_FULL is to match the whole text.
std::string Anchored(const GrammarTrigger& trigger) {
  std::string pattern = trigger.value;
  if (trigger.type != 3) return pattern;
  if (pattern.front() != '^') pattern.insert(0, "^");
  if (pattern.back() != '$') pattern += "$";
  return pattern;
}

}  // namespace

std::vector<Token> PrefillTokens(const llama_vocab* vocab, const std::string& generation_prompt) {
  std::vector<Token> tokens = common_tokenize(vocab, generation_prompt, false, true);
  if (tokens.empty()) return tokens;
  const auto is_space = [](const std::string& text) { return !text.empty() && std::isspace(static_cast<unsigned char>(text.front())) != 0; };
  // Some tokenizers put a space before the first marker.
  if (is_space(common_token_to_piece(vocab, tokens.front(), true)) && !is_space(generation_prompt)) tokens.erase(tokens.begin());
  return tokens;
}

TriggerWatch::TriggerWatch(const llama_vocab* vocab, const SamplingParams& params) : vocab_(vocab) {
  for (const GrammarTrigger& trigger : params.grammar_triggers) {
    if (trigger.type == 0) {
      tokens_.push_back(trigger.token);
    } else if (trigger.type == 1) {
      triggers_.push_back({trigger.value, std::nullopt});
    } else {
      triggers_.push_back({"", std::regex(Anchored(trigger))});
    }
  }
  if (params.reasoning_budget_start.empty() || params.reasoning_budget_end.empty()) return;
  const int32_t budget = params.reasoning_budget_tokens < 0 ? INT_MAX : params.reasoning_budget_tokens;
  thoughts_.reset(common_reasoning_budget_init(vocab, {params.reasoning_budget_start}, params.reasoning_budget_end, params.reasoning_budget_forced, budget));
  if (params.generation_prompt.empty()) return;
  for (Token token : PrefillTokens(vocab, params.generation_prompt)) llama_sampler_accept(thoughts_.get(), token);
}

std::optional<size_t> TriggerWatch::Add(Token token, size_t index) {
  if (!thoughts_) return AddVisible(token, index);
  const auto state = common_reasoning_budget_get_state(thoughts_.get());
  const bool visible = state == REASONING_BUDGET_IDLE || state == REASONING_BUDGET_DONE;
  llama_sampler_accept(thoughts_.get(), token);
  if (visible) return AddVisible(token, index);
  // The end of a thought may begin a call.
  const llama_tokens* end = common_reasoning_budget_get_state(thoughts_.get()) == REASONING_BUDGET_DONE ? common_reasoning_budget_get_end_match(thoughts_.get()) : nullptr;
  for (size_t i = 0; end != nullptr && i < end->size(); ++i) {
    if (const auto first = AddVisible((*end)[i], index + 1 + i - end->size())) return first;
  }
  return std::nullopt;
}

std::optional<size_t> TriggerWatch::AddVisible(Token token, size_t index) {
  if (std::ranges::find(tokens_, token) != tokens_.end()) return index;
  const size_t fresh = text_.size();
  text_ += common_token_to_piece(vocab_, token, true);
  pieces_.push_back({index, dropped_ + text_.size()});
  if (const std::optional<size_t> start = Find(fresh)) {
    const auto first = std::ranges::find_if(pieces_, [&](const Piece& piece) { return piece.end > dropped_ + *start; });
    return first == pieces_.end() ? index : first->index;
  }
  if (text_.size() > 2 * kKeptBytes) {
    dropped_ += text_.size() - kKeptBytes;
    text_.erase(0, text_.size() - kKeptBytes);
    while (pieces_.front().end <= dropped_) pieces_.pop_front();
  }
  return std::nullopt;
}

std::optional<size_t> TriggerWatch::Find(size_t fresh) const {
  for (const Trigger& trigger : triggers_) {
    if (!trigger.pattern) {
      const size_t at = text_.find(trigger.word, fresh - std::min(fresh, trigger.word.size() - 1));
      if (at != std::string::npos) return at;
      continue;
    }
    const size_t from = fresh - std::min(fresh, kPatternBytesMax);
    const auto flags = dropped_ + from > 0 ? std::regex_constants::match_not_bol : std::regex_constants::match_default;
    std::smatch match;
    if (std::regex_search(text_.begin() + static_cast<std::ptrdiff_t>(from), text_.end(), match, *trigger.pattern, flags)) {
      return from + static_cast<size_t>(match.position(0));
    }
  }
  return std::nullopt;
}

}  // namespace meshnet
