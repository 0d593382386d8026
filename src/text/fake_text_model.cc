#include "text/fake_text_model.h"

#include <algorithm>

#include "text/bounded_json.h"
#include "text/openai_format.h"
#include "text/request_fields.h"

namespace meshnet {
namespace {

using nlohmann::ordered_json;
using text::AnswerIdentity;
using text::BadRequest;
using text::FieldReader;

bool Printable(Token token) { return token == '\n' || (token >= 0x20 && token < 0x7f); }
std::string FakePiece(Token token) {
  if (Printable(token)) return std::string(1, static_cast<char>(token));
  std::string piece = "t";
  piece.append(std::to_string(token)).append(" ");
  return piece;
}

class FakeWriter : public AnswerWriter {
 public:
  FakeWriter(AnswerIdentity identity, uint32_t index, std::string stop, Token end)
      : identity_(std::move(identity)), index_(index), stop_(std::move(stop)), end_(end) {}

  std::vector<ordered_json> Begin() override {
    if (!chat()) return {};
    return {text::Chunk(identity_, {{"index", index_}, {"delta", {{"role", "assistant"}, {"content", nullptr}}}, {"finish_reason", nullptr}})};
  }

  Fed Feed(const SampledToken& token) override {
    Fed fed;
    if (token.end_of_generation || token.token == end_) {
      fed.stopped = true;
      return fed;
    }
    text_ += FakePiece(token.token);
    size_t safe = text_.size();
    if (!stop_.empty()) {
      const size_t found = text_.find(stop_);
      if (found != std::string::npos) {
        text_.resize(found);
        safe = found;
        fed.stopped = true;
      } else {
        // Hold back what may be the beginning of the stop string.
        for (size_t length = std::min(stop_.size() - 1, text_.size()); length > 0; --length) {
          if (text_.compare(text_.size() - length, length, stop_, 0, length) == 0) {
            safe = text_.size() - length;
            break;
          }
        }
      }
    }
    if (safe > sent_) fed.events.push_back(Delta(safe));
    return fed;
  }

  std::vector<ordered_json> End(bool cut) override {
    reason_ = cut ? FinishReason::kLength : FinishReason::kStop;
    std::vector<ordered_json> events;
    if (text_.size() > sent_) events.push_back(Delta(text_.size()));
    ordered_json choice = {{"index", index_}};
    if (chat()) {
      choice["delta"] = ordered_json::object();
    } else {
      choice["text"] = "";
    }
    choice["finish_reason"] = text::Name(reason_);
    events.push_back(text::Chunk(identity_, std::move(choice)));
    return events;
  }

  ordered_json Choice() override {
    if (chat()) return {{"index", index_}, {"message", {{"role", "assistant"}, {"content", text_}}}, {"finish_reason", text::Name(reason_)}};
    return {{"index", index_}, {"text", text_}, {"logprobs", nullptr}, {"finish_reason", text::Name(reason_)}};
  }

 private:
  bool chat() const { return identity_.kind == ApiKind::kChat; }
  ordered_json Delta(size_t until) {
    const std::string part = text_.substr(sent_, until - sent_);
    sent_ = until;
    if (chat()) return text::Chunk(identity_, {{"index", index_}, {"delta", {{"content", part}}}, {"finish_reason", nullptr}});
    return text::Chunk(identity_, {{"index", index_}, {"text", part}, {"logprobs", nullptr}, {"finish_reason", nullptr}});
  }

  AnswerIdentity identity_;
  uint32_t index_;
  std::string stop_;
  Token end_;
  std::string text_;
  size_t sent_ = 0;
  FinishReason reason_ = FinishReason::kStop;
};

class FakeRequest : public ParsedRequest {
 public:
  std::unique_ptr<AnswerWriter> NewWriter(uint32_t choice_index) const override {
    return std::make_unique<FakeWriter>(identity, choice_index, stop, end);
  }
  ordered_json UsageEvent(const Usage& usage) const override { return text::UsageChunk(identity, usage); }
  ordered_json Body(std::vector<ordered_json> choice_bodies, const Usage& usage) const override {
    return text::AnswerBody(identity, std::move(choice_bodies), usage);
  }

  AnswerIdentity identity;
  std::string stop;
  Token end = -1;
};

class FakeTextModel : public TextModel {
 public:
  explicit FakeTextModel(FakeTextModelOptions options) : options_(std::move(options)) {}

  std::variant<std::unique_ptr<ParsedRequest>, ApiError> Parse(ApiKind kind, const std::string& body, uint32_t context_tokens) const override {
    auto parsed = text::ParseObject(body, {});
    if (auto* error = std::get_if<ApiError>(&parsed)) return *error;
    FieldReader fields(std::get<ordered_json>(parsed));
    auto request = std::make_unique<FakeRequest>();
    std::vector<std::vector<Token>> prompts;
    if (auto error = kind == ApiKind::kChat ? ReadMessages(fields, &prompts) : ReadPrompts(fields, &prompts)) return *error;

    request->model = fields.String("model", 256).value_or(options_.model_name);
    request->stream = fields.Boolean("stream").value_or(false);
    if (const ordered_json* stream_options = fields.Object("stream_options")) {
      FieldReader inner(*stream_options, "stream_options.");
      request->include_usage = inner.Boolean("include_usage").value_or(false);
      inner.RefuseRest({}, {});
      if (!inner.ok()) return inner.error();
    }
    request->tokens_max = static_cast<uint32_t>(fields.Integer("max_tokens", 1, INT32_MAX).value_or(0));
    request->stop = fields.String("stop", 1000).value_or("");
    request->prompt_cache_key = fields.String("prompt_cache_key", 1000).value_or("");
    const uint32_t count = static_cast<uint32_t>(fields.Integer("n", 1, 8).value_or(1));
    SamplingParams sampling;
    sampling.seed = static_cast<uint32_t>(fields.Integer("seed", 0, UINT32_MAX).value_or(0));
    sampling.temperature = static_cast<float>(fields.Number("temperature", 0, 100).value_or(sampling.temperature));
    fields.RefuseRest({}, {});
    if (!fields.ok()) return fields.error();

    for (const std::vector<Token>& prompt : prompts) {
      if (prompt.size() >= context_tokens) return text::ContextExceeded(prompt.size(), context_tokens);
      for (uint32_t i = 0; i < count; ++i) {
        ParsedRequest::Choice choice;
        choice.index = static_cast<uint32_t>(request->choices.size());
        choice.prompt_index = choice.index / count;
        choice.prompt = prompt;
        choice.sampling = sampling;
        choice.sampling.seed += i;
        choice.sampling.prompt_len = PastLen(static_cast<uint32_t>(prompt.size()));
        request->choices.push_back(std::move(choice));
      }
    }
    request->identity = {kind, kind == ApiKind::kChat ? "chatcmpl-fake" : "cmpl-fake", 1700000000, request->model, "fake"};
    request->end = options_.end_of_generation;
    return std::unique_ptr<ParsedRequest>(std::move(request));
  }

  std::variant<ordered_json, ApiError> Tokenize(const std::string& body) const override {
    return WithString(body, "content", [&](const std::string& content) { return ordered_json{{"tokens", TokenizeText(content)}}; });
  }
  std::variant<ordered_json, ApiError> Detokenize(const std::string& body) const override {
    auto parsed = text::ParseObject(body, {});
    if (auto* error = std::get_if<ApiError>(&parsed)) return *error;
    std::vector<Token> tokens;
    FieldReader fields(std::get<ordered_json>(parsed));
    const ordered_json* list = fields.Array("tokens", 1u << 20);
    if (list == nullptr) return fields.ok() ? BadRequest("tokens", "\"tokens\" is required.") : fields.error();
    if (auto error = ReadIds(*list, "tokens", &tokens)) return *error;
    std::string content;
    for (Token token : tokens) content += FakePiece(token);
    return ordered_json{{"content", content}};
  }
  std::variant<ordered_json, ApiError> ApplyTemplate(const std::string& body) const override {
    auto parsed = text::ParseObject(body, {});
    if (auto* error = std::get_if<ApiError>(&parsed)) return *error;
    FieldReader fields(std::get<ordered_json>(parsed));
    std::string prompt;
    if (auto error = RenderMessages(fields, &prompt)) return *error;
    return ordered_json{{"prompt", prompt}};
  }
  ordered_json Props() const override { return {{"chat_template", "fake"}, {"vocabulary_size", options_.vocabulary_size}}; }

  std::vector<Token> TokenizeText(const std::string& text) const override {
    std::vector<Token> tokens;
    for (char byte : text) tokens.push_back(static_cast<Token>(static_cast<uint8_t>(byte) % options_.vocabulary_size));
    return tokens;
  }
  std::string Piece(Token token) const override { return FakePiece(token); }
  bool IsEndOfGeneration(Token token) const override { return token == options_.end_of_generation; }
  uint32_t vocabulary_size() const override { return options_.vocabulary_size; }
  std::string model_name() const override { return options_.model_name; }
  uint32_t training_context() const override { return options_.training_context; }
  bool has_tokenizer() const override { return options_.has_tokenizer; }

 private:
  template <typename Use>
  static std::variant<ordered_json, ApiError> WithString(const std::string& body, const char* name, const Use& use) {
    auto parsed = text::ParseObject(body, {});
    if (auto* error = std::get_if<ApiError>(&parsed)) return *error;
    FieldReader fields(std::get<ordered_json>(parsed));
    auto value = fields.String(name, SIZE_MAX);
    if (!fields.ok()) return fields.error();
    if (!value) return BadRequest(name, std::string("\"") + name + "\" is required.");
    return use(*value);
  }

  static std::optional<ApiError> RenderMessages(FieldReader& fields, std::string* prompt) {
    const ordered_json* messages = fields.Array("messages", 10000);
    if (messages == nullptr) return fields.ok() ? BadRequest("messages", "\"messages\" is required.") : fields.error();
    for (size_t i = 0; i < messages->size(); ++i) {
      const std::string path = "messages[" + std::to_string(i) + "]";
      if (!(*messages)[i].is_object()) return BadRequest(path, "\"" + path + "\" must be an object.");
      FieldReader message((*messages)[i], path + ".");
      *prompt += message.String("role", 100).value_or("user") + ":" + message.String("content", SIZE_MAX).value_or("") + "\n";
      message.RefuseRest({}, {});
      if (!message.ok()) return message.error();
    }
    *prompt += "assistant:";
    return std::nullopt;
  }

  std::optional<ApiError> ReadMessages(FieldReader& fields, std::vector<std::vector<Token>>* prompts) const {
    if (!options_.has_tokenizer) {
      ApiError error = BadRequest("messages", "This model has no tokenizer: send token ids to /v1/completions.");
      error.status = 501;
      return error;
    }
    std::string prompt;
    if (auto error = RenderMessages(fields, &prompt)) return error;
    prompts->push_back(TokenizeText(prompt));
    return std::nullopt;
  }

  std::optional<ApiError> ReadIds(const ordered_json& list, const std::string& path, std::vector<Token>* tokens) const {
    for (const ordered_json& id : list) {
      if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= options_.vocabulary_size) {
        return BadRequest(path, "\"" + path + "\" must hold token ids below " + std::to_string(options_.vocabulary_size) + ".");
      }
      tokens->push_back(id.get<Token>());
    }
    return std::nullopt;
  }

  std::optional<ApiError> ReadPrompts(FieldReader& fields, std::vector<std::vector<Token>>* prompts) const {
    const ordered_json* prompt = fields.Value("prompt");
    if (prompt == nullptr) return BadRequest("prompt", "\"prompt\" is required.");
    const bool several = prompt->is_array() && !prompt->empty() && !prompt->front().is_number();
    const ordered_json one = ordered_json::array({*prompt});
    for (const ordered_json& item : several ? *prompt : one) {
      std::vector<Token> tokens;
      if (item.is_string()) {
        tokens = TokenizeText(item.get<std::string>());
      } else if (!item.is_array()) {
        return BadRequest("prompt", "\"prompt\" must be a string, token ids, or a list of these.");
      } else if (auto error = ReadIds(item, "prompt", &tokens)) {
        return error;
      }
      if (tokens.empty()) return BadRequest("prompt", "\"prompt\" is empty.");
      prompts->push_back(std::move(tokens));
    }
    return std::nullopt;
  }

  FakeTextModelOptions options_;
};

}  // namespace

std::unique_ptr<TextModel> CreateFakeTextModel(const FakeTextModelOptions& options) { return std::make_unique<FakeTextModel>(options); }

}  // namespace meshnet
