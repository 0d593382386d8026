// A whole request body, checked and sorted into what the answer is made of and what the model is asked. Pure.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>
#include <vector>

#include "text/answer_fields.h"
#include "text/chat_tools.h"
#include "text/text_model.h"

namespace meshnet::text {

inline constexpr size_t kPromptsMax = 64;  // of one /v1/completions request

struct RequestLimits {
  uint64_t body_bytes_max = 32u << 20;
  uint32_t context_tokens = 0;
  uint32_t vocabulary_size = 0;
};

struct ChatBody {
  AnswerFields answer;
  Constraint constraint;
  nlohmann::ordered_json messages;   // normalised
  nlohmann::ordered_json sampling;   // llama-server's names
  nlohmann::ordered_json templating; // chat_template_kwargs, reasoning_format, reasoning_effort, budgets, continue_final_message, …: as they were sent
};

// Text and token ids in a row, as llama-server allows: [12, 34, "string", 56].
using PromptPiece = std::variant<std::string, Token>;

struct CompletionBody {
  AnswerFields answer;
  Constraint constraint;  // no tools
  std::vector<std::vector<PromptPiece>> prompts;
  nlohmann::ordered_json sampling;
};

std::variant<ChatBody, ApiError> ReadChatBody(const std::string& body, const RequestLimits& limits);
std::variant<CompletionBody, ApiError> ReadCompletionBody(const std::string& body, const RequestLimits& limits);

}  // namespace meshnet::text
