#include "text/llama/llama_chat_prompt.h"

#include <algorithm>
#include <cmath>
#include <exception>

#include "protocol/sampling_limits.h"
#include "server-schema.h"
#include "text/llama/llama_sampling.h"
#include "text/openai_format.h"
#include "text/visible_text.h"

namespace meshnet::text {
namespace {

using nlohmann::ordered_json;

constexpr size_t kCauseBytesMax = 300;

// What a library says about its input, fit for one sentence of an error.
std::string Cause(const std::exception& fault) {
  std::string text = fault.what();
  // A template that refuses its input says why in its own words, behind a copy of its source.
  static constexpr std::string_view kRaised = "Jinja Exception: ";
  if (const size_t raised = text.rfind(kRaised); raised != std::string::npos) text = text.substr(raised + kRaised.size());
  std::replace(text.begin(), text.end(), '\n', ' ');
  text = ToUtf8(text.substr(0, kCauseBytesMax), nullptr);
  while (!text.empty() && (text.back() == ' ' || text.back() == '.')) text.pop_back();
  return text;
}

// llama-server's request, rebuilt from what was checked; nothing else of the client's body gets there.
ordered_json ServerRequest(const ChatBody& body) {
  ordered_json request = body.sampling;
  request.update(body.templating);
  request["messages"] = body.messages;
  request["stream"] = body.answer.stream;
  const Constraint& constraint = body.constraint;
  if (!constraint.tools.empty()) {
    request["tools"] = constraint.tools;
    request["tool_choice"] = constraint.tool_choice == ToolChoice::kNone ? "none" : constraint.tool_choice == ToolChoice::kAuto ? "auto" : "required";
  }
  if (constraint.parallel_tool_calls) request["parallel_tool_calls"] = *constraint.parallel_tool_calls;
  if (constraint.schema) request["response_format"] = {{"type", "json_schema"}, {"json_schema", {{"schema", *constraint.schema}}}};
  if (!constraint.grammar.empty()) request["grammar"] = constraint.grammar;
  return request;
}

std::string ConstraintParam(const Constraint& constraint) {
  return constraint.schema ? constraint.schema_path : !constraint.grammar.empty() ? "grammar" : "tools";
}

// Whether the template takes the first `count` messages, without tools and schemas.
bool Renders(const ServerModel& model, const ordered_json& messages, size_t count, std::string* cause) {
  try {
    common_chat_templates_inputs inputs;
    const ordered_json first(messages.begin(), messages.begin() + static_cast<std::ptrdiff_t>(count));
    inputs.messages = common_chat_msgs_parse_oaicompat(common_json::parse(first.dump()));
    inputs.enable_thinking = model.chat.enable_thinking;
    inputs.reasoning_format = model.chat.reasoning_format;
    common_chat_templates_apply(model.chat.tmpls.get(), inputs);
    return true;
  } catch (const std::exception& fault) {
    *cause = Cause(fault);
    return false;
  }
}

// Which message the template refuses: the last of the shortest beginning of the conversation that does not render.
ApiError TemplateFault(const ServerModel& model, const ChatBody& body, const std::exception& fault) {
  std::string cause;
  if (Renders(model, body.messages, body.messages.size(), &cause)) {
    return BadRequest(body.constraint.tools.empty() && !body.constraint.schema ? "messages" : ConstraintParam(body.constraint),
                      "The request cannot be rendered with this model's chat template: " + Cause(fault) + ".");
  }
  size_t good = 0, bad = body.messages.size();
  while (bad - good > 1) {
    const size_t middle = good + (bad - good) / 2;
    std::string middle_cause;
    if (Renders(model, body.messages, middle, &middle_cause)) {
      good = middle;
    } else {
      bad = middle;
      cause = middle_cause;
    }
  }
  const std::string param = "messages[" + std::to_string(bad - 1) + "]";
  return BadRequest(param, "The chat template refuses \"" + param + "\" (role " + body.messages[bad - 1]["role"].get<std::string>() + "): " + cause + ".");
}

std::optional<ApiError> CheckTools(const ServerModel& model, const Constraint& constraint) {
  if (constraint.tool_choice == ToolChoice::kNone || model.template_knows_tools) return std::nullopt;
  return BadRequest("tools", "The chat template of this model has no form for tools, so none could be called. Remove \"tools\", or start the gateway with a "
                             "--chat-template-file that has one.");
}

task_params EvaluateSchema(const ServerModel& model, const common_json& request) {
  std::vector<llama_logit_bias> end_bias;
  for (Token token : model.vocabulary->end_tokens()) end_bias.push_back({token, -INFINITY});
  return server_schema::eval_llama_cmpl_schema(model.vocabulary->vocab(), model.defaults, end_bias, request);
}

std::variant<ModelPrompt, ApiError> ToModelPrompt(const LlamaVocabulary& vocabulary, task_params task, uint32_t context_tokens) {
  ModelPrompt prompt;
  prompt.sampling = ToSamplingParams(task.sampling, context_tokens);
  prompt.stops = std::move(task.antiprompt);
  prompt.preserved.insert(task.sampling.preserved_tokens.begin(), task.sampling.preserved_tokens.end());
  prompt.parser = std::move(task.chat_parser_params);
  // What the fields' own limits do not cover: texts that became many tokens, and what the chat template adds.
  if (Status status = CheckSamplingParams(prompt.sampling, vocabulary.size()); !status.ok()) {
    return BadRequest("", "The request cannot be honoured: " + status.message() + ".");
  }
  return prompt;
}

}  // namespace

ApiError NoTokenizer(const std::string& param) {
  ApiError error = BadRequest(param, "This model has no tokenizer: only token ids at /v1/completions are possible.");
  error.status = 501;
  error.type = "not_supported_error";
  error.code = "no_tokenizer";
  return error;
}

std::variant<ModelPrompt, ApiError> PrepareChat(const ServerModel& model, const ChatBody& body, uint32_t context_tokens) {
  if (auto error = CheckTools(model, body.constraint)) return *error;
  common_json parameters;
  try {
    common_json request = common_json::parse(ServerRequest(body).dump());
    std::vector<raw_buffer> files;
    parameters = oaicompat_chat_params_parse(request, model.chat, files);
  } catch (const std::exception& fault) {
    return TemplateFault(model, body, fault);
  }
  try {
    task_params task = EvaluateSchema(model, parameters);
    const bool constrained = body.constraint.schema || !body.constraint.grammar.empty() || body.constraint.tool_choice == ToolChoice::kRequired;
    const std::string param = ConstraintParam(body.constraint);
    if (constrained && task.sampling.grammar.grammar.empty()) {
      return BadRequest(param, "The chat template of this model has no form in which \"" + param + "\" could be enforced.");
    }
    if (auto error = CheckConstraint(*model.vocabulary, task.sampling, param)) return *error;
    auto prompt = ToModelPrompt(*model.vocabulary, std::move(task), context_tokens);
    if (auto* ready = std::get_if<ModelPrompt>(&prompt)) ready->texts.push_back(parameters.at("prompt").get<std::string>());
    return prompt;
  } catch (const std::exception& fault) {
    return BadRequest("", "The request cannot be honoured: " + Cause(fault) + ".");
  }
}

std::variant<ModelPrompt, ApiError> PrepareCompletion(const ServerModel& model, const CompletionBody& body, uint32_t context_tokens) {
  ordered_json request = body.sampling;
  if (body.constraint.schema) request["json_schema"] = *body.constraint.schema;
  if (!body.constraint.grammar.empty()) request["grammar"] = body.constraint.grammar;
  const bool constrained = body.constraint.schema || !body.constraint.grammar.empty();
  if (!model.vocabulary->has_tokenizer()) {
    // llama.cpp aborts when it is to tokenize without a tokenizer.
    if (constrained) return NoTokenizer(ConstraintParam(body.constraint));
    for (const ordered_json& pair : request.value("logit_bias", ordered_json::array())) {
      if (pair[0].is_string()) return NoTokenizer("logit_bias");
    }
  }
  try {
    task_params task = EvaluateSchema(model, common_json::parse(request.dump()));
    if (constrained && task.sampling.grammar.grammar.empty()) return BadRequest(ConstraintParam(body.constraint), "The constraint cannot be enforced.");
    if (auto error = CheckConstraint(*model.vocabulary, task.sampling, ConstraintParam(body.constraint))) return *error;
    return ToModelPrompt(*model.vocabulary, std::move(task), context_tokens);
  } catch (const std::exception& fault) {
    return BadRequest(constrained ? ConstraintParam(body.constraint) : "", "The request cannot be honoured: " + Cause(fault) + ".");
  }
}

std::variant<std::string, ApiError> RenderPrompt(const ServerModel& model, const ChatBody& body) {
  if (auto error = CheckTools(model, body.constraint)) return *error;
  try {
    common_json request = common_json::parse(ServerRequest(body).dump());
    std::vector<raw_buffer> files;
    return oaicompat_chat_params_parse(request, model.chat, files).at("prompt").get<std::string>();
  } catch (const std::exception& fault) {
    return TemplateFault(model, body, fault);
  }
}

std::variant<std::vector<Token>, ApiError> TokenizePrompt(const LlamaVocabulary& vocabulary, const std::vector<PromptPiece>& pieces, const std::string& param,
                                                          uint32_t context_tokens) {
  std::vector<Token> tokens;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (const Token* token = std::get_if<Token>(&pieces[i])) {
      tokens.push_back(*token);
      continue;
    }
    if (!vocabulary.has_tokenizer()) return NoTokenizer(param);
    const std::string& text = std::get<std::string>(pieces[i]);
    if (const size_t tokens_min = vocabulary.TokensAtLeast(text); tokens_min > context_tokens) return ContextExceeded(tokens_min, context_tokens);
    // As llama-server: special tokens in the text count, and only the first piece gets what the model wants in front.
    const auto beginning = i == 0 ? LlamaVocabulary::BeginningOfText::kAsTheModelAsks : LlamaVocabulary::BeginningOfText::kNo;
    const auto piece = vocabulary.Tokenize(text, beginning, true);
    if (!piece) return BadRequest(param, "\"" + param + "\" cannot be tokenized.");
    tokens.insert(tokens.end(), piece->begin(), piece->end());
  }
  if (tokens.empty()) return BadRequest(param, "\"" + param + "\" is empty.");
  if (tokens.size() >= context_tokens) return ContextExceeded(tokens.size(), context_tokens);
  return tokens;
}

}  // namespace meshnet::text
