#include "text/llama/llama_text_model.h"

#include <ctime>
#include <exception>

#include "base/system_clock.h"
#include "build-info.h"
#include "text/bounded_json.h"
#include "text/llama/llama_answer_writer.h"
#include "text/llama/llama_chat_prompt.h"
#include "text/llama/llama_sampling.h"
#include "text/openai_format.h"
#include "text/request_body.h"
#include "text/request_fields.h"
#include "text/visible_text.h"

namespace meshnet {
namespace {

using nlohmann::ordered_json;
using text::AnswerFields;
using text::AnswerPlan;
using text::BadRequest;
using text::FieldReader;

std::string RandomHex() { return RandomId<Bytes<struct AnswerIdTag, 16>>().Hex(); }

uint32_t RandomSeed() {
  uint8_t bytes[4];
  FillRandom(bytes, sizeof bytes);
  const uint32_t seed = static_cast<uint32_t>(bytes[0]) << 24 | static_cast<uint32_t>(bytes[1]) << 16 | static_cast<uint32_t>(bytes[2]) << 8 | bytes[3];
  return seed == UINT32_MAX ? 0 : seed;
}

// The sampler takes 2^32-1 for "random", so the last seed is left out.
uint32_t SeedOf(uint32_t first, uint32_t choice) { return static_cast<uint32_t>((static_cast<uint64_t>(first) + choice) % UINT32_MAX); }

// Out of memory, and what a library throws beyond what is caught where it is called.
ApiError Unexpected() {
  ApiError error;
  error.status = 500;
  error.type = "server_error";
  error.message = "The request could not be processed.";
  return error;
}

class LlamaRequest : public ParsedRequest {
 public:
  explicit LlamaRequest(std::shared_ptr<const AnswerPlan> plan) : plan_(std::move(plan)) {}

  std::unique_ptr<AnswerWriter> NewWriter(uint32_t choice_index) const override { return std::make_unique<text::LlamaAnswerWriter>(plan_, choice_index); }
  ordered_json UsageEvent(const Usage& usage) const override { return text::UsageChunk(plan_->identity, usage); }
  ordered_json Body(std::vector<ordered_json> choice_bodies, const Usage& usage) const override {
    return text::AnswerBody(plan_->identity, std::move(choice_bodies), usage);
  }

 private:
  std::shared_ptr<const AnswerPlan> plan_;
};

class LlamaTextModel : public TextModel {
 public:
  LlamaTextModel(text::ServerModel model, uint64_t body_bytes_max) : model_(std::move(model)), body_bytes_max_(body_bytes_max) {}

  std::variant<std::unique_ptr<ParsedRequest>, ApiError> Parse(ApiKind kind, const std::string& body, uint32_t context_tokens) const override {
    return Guarded<std::unique_ptr<ParsedRequest>>([&] { return kind == ApiKind::kChat ? ParseChat(body, context_tokens) : ParseCompletion(body, context_tokens); });
  }
  std::variant<ordered_json, ApiError> Tokenize(const std::string& body) const override {
    return Guarded<ordered_json>([&] { return TokenizeBody(body); });
  }
  std::variant<ordered_json, ApiError> Detokenize(const std::string& body) const override {
    return Guarded<ordered_json>([&] { return DetokenizeBody(body); });
  }
  std::variant<ordered_json, ApiError> ApplyTemplate(const std::string& body) const override {
    return Guarded<ordered_json>([&] { return ApplyTemplateBody(body); });
  }
  ordered_json Props() const override;

  std::vector<Token> TokenizeText(const std::string& text) const override {
    return vocabulary().Tokenize(text, text::LlamaVocabulary::BeginningOfText::kAsTheModelAsks, true).value_or(std::vector<Token>());
  }
  std::string Piece(Token token) const override { return vocabulary().Piece(token, text::SpecialTokens::kHide); }
  bool IsEndOfGeneration(Token token) const override { return vocabulary().IsEndOfGeneration(token); }
  uint32_t vocabulary_size() const override { return vocabulary().size(); }
  std::string model_name() const override { return vocabulary().model_name(); }
  uint32_t training_context() const override { return vocabulary().training_context(); }
  bool has_tokenizer() const override { return vocabulary().has_tokenizer(); }

 private:
  using ParseResult = std::variant<std::unique_ptr<ParsedRequest>, ApiError>;
  using JsonResult = std::variant<ordered_json, ApiError>;

  template <typename T, typename Run>
  static std::variant<T, ApiError> Guarded(const Run& run) {
    try {
      return run();
    } catch (const std::exception&) {
      return Unexpected();
    }
  }

  const text::LlamaVocabulary& vocabulary() const { return *model_.vocabulary; }
  text::RequestLimits Limits(uint32_t context_tokens) const { return {body_bytes_max_, context_tokens, vocabulary().size()}; }
  ParseResult ParseChat(const std::string& body, uint32_t context_tokens) const;
  ParseResult ParseCompletion(const std::string& body, uint32_t context_tokens) const;
  std::unique_ptr<ParsedRequest> Assemble(ApiKind kind, const AnswerFields& answer, text::ModelPrompt prompt, std::vector<std::vector<Token>> prompts,
                                          bool parses_json) const;
  JsonResult TokenizeBody(const std::string& body) const;
  JsonResult DetokenizeBody(const std::string& body) const;
  JsonResult ApplyTemplateBody(const std::string& body) const;

  text::ServerModel model_;
  uint64_t body_bytes_max_;
};

LlamaTextModel::ParseResult LlamaTextModel::ParseChat(const std::string& body, uint32_t context_tokens) const {
  if (!has_tokenizer()) return text::NoTokenizer("messages");
  auto read = text::ReadChatBody(body, Limits(context_tokens));
  if (auto* error = std::get_if<ApiError>(&read)) return *error;
  const auto& chat = std::get<text::ChatBody>(read);
  auto prepared = text::PrepareChat(model_, chat, context_tokens);
  if (auto* error = std::get_if<ApiError>(&prepared)) return *error;
  auto& prompt = std::get<text::ModelPrompt>(prepared);
  auto tokens = text::TokenizePrompt(vocabulary(), {prompt.texts.front()}, "messages", context_tokens);
  if (auto* error = std::get_if<ApiError>(&tokens)) return *error;
  const bool parses_json = chat.constraint.schema.has_value() || chat.constraint.tool_choice != text::ToolChoice::kNone;
  return Assemble(ApiKind::kChat, chat.answer, std::move(prompt), {std::get<std::vector<Token>>(std::move(tokens))}, parses_json);
}

LlamaTextModel::ParseResult LlamaTextModel::ParseCompletion(const std::string& body, uint32_t context_tokens) const {
  auto read = text::ReadCompletionBody(body, Limits(context_tokens));
  if (auto* error = std::get_if<ApiError>(&read)) return *error;
  const auto& completion = std::get<text::CompletionBody>(read);
  auto prepared = text::PrepareCompletion(model_, completion, context_tokens);
  if (auto* error = std::get_if<ApiError>(&prepared)) return *error;
  std::vector<std::vector<Token>> prompts;
  for (size_t i = 0; i < completion.prompts.size(); ++i) {
    const std::string param = completion.prompts.size() == 1 ? "prompt" : "prompt[" + std::to_string(i) + "]";
    auto tokens = text::TokenizePrompt(vocabulary(), completion.prompts[i], param, context_tokens);
    if (auto* error = std::get_if<ApiError>(&tokens)) return *error;
    prompts.push_back(std::get<std::vector<Token>>(std::move(tokens)));
  }
  return Assemble(ApiKind::kCompletion, completion.answer, std::get<text::ModelPrompt>(std::move(prepared)), std::move(prompts), false);
}

std::unique_ptr<ParsedRequest> LlamaTextModel::Assemble(ApiKind kind, const AnswerFields& answer, text::ModelPrompt prompt,
                                                        std::vector<std::vector<Token>> prompts, bool parses_json) const {
  auto plan = std::make_shared<AnswerPlan>();
  plan->identity.kind = kind;
  plan->identity.id = (kind == ApiKind::kChat ? "chatcmpl-" : "cmpl-") + RandomHex();
  plan->identity.created = static_cast<int64_t>(std::time(nullptr));
  plan->identity.model = answer.model.empty() ? model_name() : answer.model;
  plan->identity.fingerprint = std::string("meshnet-llama.cpp-") + llama_build_info();
  plan->vocabulary = &vocabulary();
  plan->stops = answer.stops;
  plan->stops.insert(plan->stops.end(), prompt.stops.begin(), prompt.stops.end());
  plan->preserved = std::move(prompt.preserved);
  plan->parser = std::move(prompt.parser);
  plan->parses_json = parses_json;
  plan->return_tokens = answer.return_tokens;
  plan->logprobs_wanted = answer.logprobs_wanted;
  plan->probability_form = answer.post_sampling_probs ? text::ProbabilityForm::kProbability : text::ProbabilityForm::kLogarithm;

  auto request = std::make_unique<LlamaRequest>(plan);
  request->model = plan->identity.model;
  request->stream = answer.stream;
  request->include_usage = answer.include_usage;
  request->tokens_max = answer.tokens_max;
  // A key that nobody else has shares no session with anyone.
  request->prompt_cache_key = answer.reuse ? answer.prompt_cache_key : "no-reuse-" + RandomHex();
  const uint32_t seed = answer.seed.value_or(RandomSeed());
  for (const std::vector<Token>& tokens : prompts) {
    for (uint32_t i = 0; i < answer.count; ++i) {
      ParsedRequest::Choice choice;
      choice.index = static_cast<uint32_t>(request->choices.size());
      choice.prompt_index = choice.index / answer.count;
      choice.prompt = tokens;
      choice.sampling = prompt.sampling;
      choice.sampling.seed = SeedOf(seed, i);
      choice.sampling.prompt_len = PastLen(static_cast<uint32_t>(tokens.size()));
      choice.sampling.logprobs = answer.logprobs;
      choice.sampling.logprobs_wanted = answer.logprobs_wanted;
      choice.sampling.post_sampling_probs = answer.post_sampling_probs;
      request->choices.push_back(std::move(choice));
    }
  }
  return request;
}

LlamaTextModel::JsonResult LlamaTextModel::TokenizeBody(const std::string& body) const {
  auto parsed = text::ParseObject(body, {.bytes_max = body_bytes_max_});
  if (auto* error = std::get_if<ApiError>(&parsed)) return *error;
  if (!has_tokenizer()) return text::NoTokenizer("content");
  FieldReader fields(std::get<ordered_json>(parsed));
  const ordered_json* content = fields.Value("content");
  const bool add_special = fields.Boolean("add_special").value_or(false);
  const bool parse_special = fields.Boolean("parse_special").value_or(true);
  const bool with_pieces = fields.Boolean("with_pieces").value_or(false);
  fields.RefuseRest({}, {});
  if (!fields.ok()) return fields.error();

  std::vector<Token> tokens;
  const ordered_json pieces = content == nullptr ? ordered_json::array() : content->is_array() ? *content : ordered_json::array({*content});
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].is_string()) {
      const auto beginning = add_special && i == 0 ? text::LlamaVocabulary::BeginningOfText::kAsTheModelAsks : text::LlamaVocabulary::BeginningOfText::kNo;
      const auto part = vocabulary().Tokenize(pieces[i].get_ref<const std::string&>(), beginning, parse_special);
      if (!part) return BadRequest("content", "\"content\" cannot be tokenized.");
      tokens.insert(tokens.end(), part->begin(), part->end());
    } else if (pieces[i].is_number_integer() && pieces[i].get<int64_t>() >= 0 && pieces[i].get<int64_t>() < vocabulary().size()) {
      tokens.push_back(pieces[i].get<Token>());
    } else {
      return BadRequest("content", "\"content\" must be a string or an array of strings and token ids below " + std::to_string(vocabulary().size()) + ".");
    }
  }
  if (!with_pieces) return ordered_json{{"tokens", tokens}};
  ordered_json list = ordered_json::array();
  for (Token token : tokens) {
    const std::string piece = vocabulary().Piece(token, text::SpecialTokens::kShow);
    // Like llama-server: bytes where they are no text of their own.
    const bool valid = text::ToUtf8(piece, nullptr) == piece;
    ordered_json bytes = ordered_json::array();
    for (char byte : piece) bytes.push_back(static_cast<unsigned>(static_cast<unsigned char>(byte)));
    list.push_back({{"id", token}, {"piece", valid ? ordered_json(piece) : bytes}});
  }
  return ordered_json{{"tokens", std::move(list)}};
}

LlamaTextModel::JsonResult LlamaTextModel::DetokenizeBody(const std::string& body) const {
  auto parsed = text::ParseObject(body, {.bytes_max = body_bytes_max_});
  if (auto* error = std::get_if<ApiError>(&parsed)) return *error;
  if (!has_tokenizer()) return text::NoTokenizer("tokens");
  FieldReader fields(std::get<ordered_json>(parsed));
  const ordered_json* list = fields.Array("tokens", 4u << 20);
  fields.RefuseRest({}, {});
  if (!fields.ok()) return fields.error();
  std::vector<Token> tokens;
  for (const ordered_json& id : list == nullptr ? ordered_json::array() : *list) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= vocabulary().size()) {
      return BadRequest("tokens", "\"tokens\" must hold token ids below " + std::to_string(vocabulary().size()) + ".");
    }
    tokens.push_back(id.get<Token>());
  }
  return ordered_json{{"content", text::ToUtf8(vocabulary().Detokenize(tokens), nullptr)}};
}

LlamaTextModel::JsonResult LlamaTextModel::ApplyTemplateBody(const std::string& body) const {
  if (!has_tokenizer()) return text::NoTokenizer("messages");
  auto read = text::ReadChatBody(body, Limits(UINT32_MAX));
  if (auto* error = std::get_if<ApiError>(&read)) return *error;
  auto rendered = text::RenderPrompt(model_, std::get<text::ChatBody>(read));
  if (auto* error = std::get_if<ApiError>(&rendered)) return *error;
  return ordered_json{{"prompt", text::ToUtf8(std::get<std::string>(rendered), nullptr)}};
}

ordered_json LlamaTextModel::Props() const {
  ordered_json props = ordered_json::object();
  try {
    task_params defaults;
    defaults.sampling = model_.defaults.sampling;
    props["default_generation_settings"] = {{"params", ordered_json::parse(defaults.to_json(true).dump())}};
    props["model_alias"] = model_name();
    props["modalities"] = {{"vision", false}, {"video", false}, {"audio", false}};
    props["build_info"] = llama_build_info();
    if (!has_tokenizer()) return props;
    props["chat_template"] = text::ToUtf8(common_chat_templates_source(model_.chat.tmpls.get()), nullptr);
    for (const auto& [name, value] : common_chat_templates_get_caps(model_.chat.tmpls.get())) props["chat_template_caps"][name] = value;
    props["bos_token"] = text::ToUtf8(vocabulary().beginning_of_text(), nullptr);
    props["eos_token"] = text::ToUtf8(vocabulary().end_of_text(), nullptr);
  } catch (const std::exception&) {
    // What could be read stands.
  }
  return props;
}

// Tried, not asked: whether a tool gets into the prompt, and its call has a form that can be enforced.
bool KnowsTools(const common_chat_templates* templates) {
  try {
    common_chat_templates_inputs inputs;
    common_chat_msg message;
    message.role = "user";
    message.content = "x";
    inputs.messages = {message};
    inputs.tools = {{"probed_tool", "", R"({"type":"object","properties":{}})"}};
    inputs.tool_choice = COMMON_CHAT_TOOL_CHOICE_REQUIRED;
    const common_chat_params rendered = common_chat_templates_apply(templates, inputs);
    return !rendered.grammar.empty() && rendered.prompt.find("probed_tool") != std::string::npos;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace

Result<std::unique_ptr<TextModel>> CreateLlamaTextModel(const TextModelOptions& options) {
  text::ServerModel model;
  auto vocabulary = text::LlamaVocabulary::Load(options.vocab_path);
  if (!vocabulary.ok()) return vocabulary.status();
  model.vocabulary = std::move(vocabulary).value();
  try {
    text::ReadRecommendedSampling(*model.vocabulary, &model.defaults.sampling);
    model.chat.use_jinja = true;
    model.chat.prefill_assistant = model.defaults.prefill_assistant;
    model.chat.reasoning_format = model.defaults.reasoning_format;
    model.chat.allow_image = model.chat.allow_audio = model.chat.allow_video = false;
    if (model.vocabulary->has_tokenizer()) {
      model.chat.tmpls = common_chat_templates_init(model.vocabulary->model(), options.chat_template);
      model.chat.enable_thinking = common_chat_templates_support_enable_thinking(model.chat.tmpls.get());
      model.template_knows_tools = KnowsTools(model.chat.tmpls.get());
    }
  } catch (const std::exception& fault) {
    const std::string whose = options.chat_template.empty() ? options.vocab_path + ": the chat template of the model" : "The given chat template";
    const std::string advice = options.chat_template.empty() ? " Give another one with --chat-template-file." : "";
    const std::string message = whose + " cannot be used: " + fault.what() + "." + advice;
    return options.chat_template.empty() ? BadModel(message) : BadConfiguration(message);
  }
  return std::unique_ptr<TextModel>(std::make_unique<LlamaTextModel>(std::move(model), options.body_bytes_max));
}

}  // namespace meshnet
