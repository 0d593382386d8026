// From a checked request to the model's prompt and sampling parameters, through llama.cpp's chat templates and llama-server's request code.
// Everything those throw is caught here and becomes an ApiError.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "chat.h"
#include "protocol/sampling_params.h"
#include "server-common.h"
#include "text/llama/llama_vocabulary.h"
#include "text/request_body.h"
#include "text/text_model.h"

namespace meshnet::text {

// What llama-server would hold for this model: its template and its defaults. Never changes once made; its use is thread-safe.
struct ServerModel {
  std::unique_ptr<LlamaVocabulary> vocabulary;
  common_params defaults;                    // sampling parameters that the file recommends included
  server_chat_params chat;                   // holds the template; unused without a tokenizer
  bool template_knows_tools = false;
};

struct ModelPrompt {
  std::vector<std::string> texts;            // chat: one; completions: none
  SamplingParams sampling;                   // without seed and logprobs
  std::vector<std::string> stops;            // the template's own
  std::set<Token> preserved;
  common_chat_parser_params parser;
};

// The prompt's text and all that follows from the template; `prompt.texts` holds one element.
std::variant<ModelPrompt, ApiError> PrepareChat(const ServerModel& model, const ChatBody& body, uint32_t context_tokens);
std::variant<ModelPrompt, ApiError> PrepareCompletion(const ServerModel& model, const CompletionBody& body, uint32_t context_tokens);

// The text alone, without what constrains the answer: /apply-template.
std::variant<std::string, ApiError> RenderPrompt(const ServerModel& model, const ChatBody& body);

// The tokens of a prompt; a text that surely does not fit into the context is not even tokenized. `param` names it in errors.
std::variant<std::vector<Token>, ApiError> TokenizePrompt(const LlamaVocabulary& vocabulary, const std::vector<PromptPiece>& pieces, const std::string& param,
                                                          uint32_t context_tokens);

ApiError NoTokenizer(const std::string& param);

}  // namespace meshnet::text
