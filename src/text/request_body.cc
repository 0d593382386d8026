#include "text/request_body.h"

#include <algorithm>

#include "text/bounded_json.h"
#include "text/chat_messages.h"
#include "text/request_fields.h"

namespace meshnet::text {
namespace {

using nlohmann::ordered_json;

constexpr size_t kKwargsMax = 64;
constexpr size_t kBudgetMessageBytesMax = 4096;

void ReadReasoning(FieldReader& fields, ordered_json* templating) {
  if (const auto format = fields.String("reasoning_format", 100)) {
    if (*format != "none" && *format != "auto" && *format != "deepseek" && *format != "deepseek-legacy") {
      fields.FailField("reasoning_format", "must be none, auto, deepseek or deepseek-legacy.");
    }
    (*templating)["reasoning_format"] = *format;
  }
  if (const auto effort = fields.String("reasoning_effort", 100)) (*templating)["reasoning_effort"] = *effort;
  for (const char* name : {"reasoning_budget_tokens", "thinking_budget_tokens"}) {
    if (const auto budget = fields.Integer(name, -1, INT32_MAX)) (*templating)[name] = *budget;
  }
  if (const auto message = fields.String("reasoning_budget_message", kBudgetMessageBytesMax)) (*templating)["reasoning_budget_message"] = *message;
}

void ReadTemplating(FieldReader& fields, ordered_json* templating) {
  if (const ordered_json* kwargs = fields.Object("chat_template_kwargs")) {
    if (kwargs->size() > kKwargsMax) fields.FailField("chat_template_kwargs", "has more than " + std::to_string(kKwargsMax) + " members.");
    for (const char* reserved : {"messages", "tools", "bos_token", "eos_token", "add_generation_prompt"}) {
      if (kwargs->contains(reserved)) fields.Fail(std::string("chat_template_kwargs.") + reserved, std::string("\"chat_template_kwargs\" may not set \"") + reserved + "\".");
    }
    if (kwargs->contains("enable_thinking") && !kwargs->at("enable_thinking").is_boolean()) {
      fields.Fail("chat_template_kwargs.enable_thinking", "\"chat_template_kwargs.enable_thinking\" must be a boolean.");
    }
    (*templating)["chat_template_kwargs"] = *kwargs;
  }
  if (const auto add = fields.Boolean("add_generation_prompt")) (*templating)["add_generation_prompt"] = *add;
  if (const ordered_json* go_on = fields.Value("continue_final_message")) {
    if (!go_on->is_boolean() && *go_on != "reasoning_content" && *go_on != "content") {
      fields.FailField("continue_final_message", "must be a boolean, \"content\" or \"reasoning_content\".");
    }
    (*templating)["continue_final_message"] = *go_on;
  }
  ReadReasoning(fields, templating);
}

void ReadPrompt(FieldReader& fields, const ordered_json& source, const std::string& path, uint32_t vocabulary_size, std::vector<PromptPiece>* prompt) {
  const auto add = [&](const ordered_json& piece, const std::string& piece_path) {
    if (piece.is_string()) {
      prompt->push_back(piece.get<std::string>());
    } else if (!piece.is_number_integer()) {
      fields.Fail(piece_path, "\"" + piece_path + "\" must be a string or a token id, not " + TypeName(piece) + ".");
    } else if (piece.get<int64_t>() < 0 || piece.get<int64_t>() >= vocabulary_size) {
      fields.Fail(piece_path, "\"" + piece_path + "\" is not a token id between 0 and " + std::to_string(vocabulary_size - 1) + ".");
    } else {
      prompt->push_back(piece.get<Token>());
    }
  };
  if (source.is_number()) {
    fields.Fail(path, "\"" + path + "\" must be a string or a list of token ids, not a number.");
  } else if (!source.is_array()) {
    add(source, path);
  } else {
    for (size_t i = 0; i < source.size() && fields.ok(); ++i) add(source[i], path + "[" + std::to_string(i) + "]");
  }
  const auto empty = [](const PromptPiece& piece) { return std::holds_alternative<std::string>(piece) && std::get<std::string>(piece).empty(); };
  if (fields.ok() && source.is_array() && std::all_of(prompt->begin(), prompt->end(), empty)) fields.Fail(path, "\"" + path + "\" is empty.");
}

void ReadPrompts(FieldReader& fields, uint32_t vocabulary_size, std::vector<std::vector<PromptPiece>>* prompts) {
  const ordered_json* prompt = fields.Value("prompt");
  if (prompt == nullptr) return fields.FailField("prompt", "is required.");
  // A list that holds a number is one prompt; any other list is a list of prompts.
  const bool list = prompt->is_array() && !prompt->empty() &&
                    std::none_of(prompt->begin(), prompt->end(), [](const ordered_json& piece) { return piece.is_number(); });
  if (list && prompt->size() > kPromptsMax) return fields.FailField("prompt", "has more than " + std::to_string(kPromptsMax) + " prompts.");
  for (size_t i = 0; i < (list ? prompt->size() : 1) && fields.ok(); ++i) {
    prompts->emplace_back();
    ReadPrompt(fields, list ? (*prompt)[i] : *prompt, list ? "prompt[" + std::to_string(i) + "]" : "prompt", vocabulary_size, &prompts->back());
  }
}

}  // namespace

std::variant<ChatBody, ApiError> ReadChatBody(const std::string& body, const RequestLimits& limits) {
  auto parsed = ParseObject(body, {.bytes_max = limits.body_bytes_max});
  if (auto* error = std::get_if<ApiError>(&parsed)) return *error;
  FieldReader fields(std::get<ordered_json>(parsed));
  ChatBody chat;
  if (const ordered_json* messages = fields.Value("messages")) {
    auto normal = NormaliseMessages(*messages);
    if (auto* error = std::get_if<ApiError>(&normal)) return *error;
    chat.messages = std::get<ordered_json>(std::move(normal));
  } else {
    fields.FailField("messages", "is required.");
  }
  chat.answer = ReadAnswerFields(fields, ApiKind::kChat);
  chat.constraint = ReadConstraint(fields, ApiKind::kChat);
  chat.sampling = ReadSamplingFields(fields, limits.context_tokens, limits.vocabulary_size);
  chat.templating = ordered_json::object();
  ReadTemplating(fields, &chat.templating);
  ReadNeutralFields(fields);
  fields.RefuseRest(IgnoredFields(), RefusedFields());
  if (!fields.ok()) return fields.error();
  return chat;
}

std::variant<CompletionBody, ApiError> ReadCompletionBody(const std::string& body, const RequestLimits& limits) {
  auto parsed = ParseObject(body, {.bytes_max = limits.body_bytes_max});
  if (auto* error = std::get_if<ApiError>(&parsed)) return *error;
  FieldReader fields(std::get<ordered_json>(parsed));
  CompletionBody completion;
  ReadPrompts(fields, limits.vocabulary_size, &completion.prompts);
  completion.answer = ReadAnswerFields(fields, ApiKind::kCompletion);
  completion.constraint = ReadConstraint(fields, ApiKind::kCompletion);
  completion.sampling = ReadSamplingFields(fields, limits.context_tokens, limits.vocabulary_size);
  ReadNeutralFields(fields);
  fields.RefuseRest(IgnoredFields(), RefusedFields());
  if (!fields.ok()) return fields.error();
  return completion;
}

}  // namespace meshnet::text
