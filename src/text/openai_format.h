// The OpenAI shapes around a choice: stream chunks, usage, whole bodies. Pure.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "text/text_model.h"

namespace meshnet::text {

// What all chunks and bodies of one answer share.
struct AnswerIdentity {
  ApiKind kind = ApiKind::kChat;
  std::string id;            // "chatcmpl-…", "cmpl-…"
  int64_t created = 0;       // seconds since 1970
  std::string model;
  std::string fingerprint;   // of what computed the answer; a change may change texts of equal seeds
};

const char* Name(FinishReason reason);

// One stream chunk with one choice.
nlohmann::ordered_json Chunk(const AnswerIdentity& identity, nlohmann::ordered_json choice);
// The stream chunk without choices that closes an answer whose client asked for usage.
nlohmann::ordered_json UsageChunk(const AnswerIdentity& identity, const Usage& usage);
// The whole body of an answer that is not streamed.
nlohmann::ordered_json AnswerBody(const AnswerIdentity& identity, std::vector<nlohmann::ordered_json> choices, const Usage& usage);
nlohmann::ordered_json UsageJson(const Usage& usage);

ApiError ContextExceeded(size_t prompt_tokens, uint32_t context_tokens);

}  // namespace meshnet::text
