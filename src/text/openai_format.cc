#include "text/openai_format.h"

namespace meshnet::text {
namespace {

nlohmann::ordered_json Envelope(const AnswerIdentity& identity, const char* object) {
  return {{"id", identity.id}, {"object", object}, {"created", identity.created}, {"model", identity.model},
          {"system_fingerprint", identity.fingerprint}};
}

nlohmann::ordered_json ChunkEnvelope(const AnswerIdentity& identity) {
  return Envelope(identity, identity.kind == ApiKind::kChat ? "chat.completion.chunk" : "text_completion");
}

}  // namespace

const char* Name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kToolCalls: return "tool_calls";
  }
  return "";
}

nlohmann::ordered_json UsageJson(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", static_cast<uint64_t>(usage.prompt_tokens) + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
}

nlohmann::ordered_json Chunk(const AnswerIdentity& identity, nlohmann::ordered_json choice) {
  nlohmann::ordered_json chunk = ChunkEnvelope(identity);
  chunk["choices"] = nlohmann::ordered_json::array({std::move(choice)});
  return chunk;
}

nlohmann::ordered_json UsageChunk(const AnswerIdentity& identity, const Usage& usage) {
  nlohmann::ordered_json chunk = ChunkEnvelope(identity);
  chunk["choices"] = nlohmann::ordered_json::array();
  chunk["usage"] = UsageJson(usage);
  return chunk;
}

nlohmann::ordered_json AnswerBody(const AnswerIdentity& identity, std::vector<nlohmann::ordered_json> choices, const Usage& usage) {
  nlohmann::ordered_json body = Envelope(identity, identity.kind == ApiKind::kChat ? "chat.completion" : "text_completion");
  body["choices"] = std::move(choices);
  body["usage"] = UsageJson(usage);
  return body;
}

ApiError ContextExceeded(size_t prompt_tokens, uint32_t context_tokens) {
  ApiError error;
  error.message = "The prompt has " + std::to_string(prompt_tokens) + " tokens, but the context of a session is " +
                  std::to_string(context_tokens) + " tokens and an answer needs at least one. Shorten the prompt.";
  error.code = "context_length_exceeded";
  error.details = {{"n_prompt_tokens", prompt_tokens}, {"n_ctx", context_tokens}};
  return error;
}

}  // namespace meshnet::text
