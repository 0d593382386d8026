// Text and requests on one side, token ids and sampling on the other: templates, tokenizing, OpenAI parsing and formatting of one model.
// The implementation over llama.cpp's common and server parts is text/llama; the gateway sees only this.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "protocol/sampling_params.h"

namespace meshnet {

// OpenAI's error body: `{"error":{"message","type","param","code"}}` with an HTTP status.
struct ApiError {
  int status = 400;
  std::string message;
  std::string type = "invalid_request_error";
  std::string param;   // JSON path of the culprit; empty: null
  std::string code;    // "context_length_exceeded", …; empty: null
  nlohmann::ordered_json details = nlohmann::ordered_json::object();  // further members of `error`: n_prompt_tokens, n_ctx
  nlohmann::ordered_json ToJson() const;
};

enum class ApiKind { kChat, kCompletion };

enum class FinishReason { kStop, kLength, kToolCalls };

struct Usage {
  uint32_t prompt_tokens = 0;
  uint32_t cached_tokens = 0;
  uint32_t completion_tokens = 0;
};

// Turns the sampled tokens of one choice into text and OpenAI deltas. Not thread-safe. UTF-8 characters and stop strings split over tokens are
// held back until whole; special tokens never leak.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;

  struct Fed {
    std::vector<nlohmann::ordered_json> events;  // stream chunks to send now
    bool stopped = false;                        // a stop string or end of generation was reached
  };
  // The first stream chunk (role), before any token.
  virtual std::vector<nlohmann::ordered_json> Begin() = 0;
  virtual Fed Feed(const SampledToken& token) = 0;
  // The closing chunks (held back text, finish chunk; usage is the gateway's, via UsageEvent). `cut` = the answer ended by length.
  virtual std::vector<nlohmann::ordered_json> End(bool cut) = 0;
  // One element of `choices` of a non-stream body, after End.
  virtual nlohmann::ordered_json Choice() = 0;
};

// A parsed request: one GenerationRequest per prompt (completions may carry several), shared by its n choices.
class ParsedRequest {
 public:
  virtual ~ParsedRequest() = default;

  struct Choice {
    uint32_t index = 0;            // `index` in the answer
    uint32_t prompt_index = 0;     // the n choices of one prompt share it: its tokens count once
    std::vector<Token> prompt;
    SamplingParams sampling;       // seed resolved, different per choice
  };
  std::vector<Choice> choices;
  uint32_t tokens_max = 0;         // 0: until the context is full
  bool stream = false;
  bool include_usage = false;
  std::string model;               // as asked for
  std::string prompt_cache_key;    // separates sessions of one owner

  virtual std::unique_ptr<AnswerWriter> NewWriter(uint32_t choice_index) const = 0;
  // The final `choices: []` chunk with usage.
  virtual nlohmann::ordered_json UsageEvent(const Usage& usage) const = 0;
  // The whole non-stream body.
  virtual nlohmann::ordered_json Body(std::vector<nlohmann::ordered_json> choice_bodies, const Usage& usage) const = 0;
};

// Thread-safe: requests are parsed on many threads at once.
class TextModel {
 public:
  virtual ~TextModel() = default;

  // `context_tokens` is the route's per-session context: a prompt that does not fit is a 400 context_length_exceeded.
  virtual std::variant<std::unique_ptr<ParsedRequest>, ApiError> Parse(ApiKind kind, const std::string& body, uint32_t context_tokens) const = 0;

  // Endpoints /tokenize, /detokenize, /apply-template, /props: body in, body out.
  virtual std::variant<nlohmann::ordered_json, ApiError> Tokenize(const std::string& body) const = 0;
  virtual std::variant<nlohmann::ordered_json, ApiError> Detokenize(const std::string& body) const = 0;
  virtual std::variant<nlohmann::ordered_json, ApiError> ApplyTemplate(const std::string& body) const = 0;
  virtual nlohmann::ordered_json Props() const = 0;

  // Plain tokenizing for the command line: special tokens parsed, BOS added as the model asks.
  virtual std::vector<Token> TokenizeText(const std::string& text) const = 0;
  virtual std::string Piece(Token token) const = 0;
  virtual bool IsEndOfGeneration(Token token) const = 0;
  virtual uint32_t vocabulary_size() const = 0;
  // From the file's header: for /v1/models.
  virtual std::string model_name() const = 0;
  virtual uint32_t training_context() const = 0;
  // False for vocabularies without a tokenizer: the text endpoints then answer 501, token ids still work.
  virtual bool has_tokenizer() const = 0;
};

struct TextModelOptions {
  std::string vocab_path;          // a GGUF with the tokenizer: the whole model, or the head shard; loaded vocab-only
  std::string chat_template;       // --chat-template / --chat-template-file; empty: the model's own
  uint64_t body_bytes_max = 32u << 20;
};

// In text/llama/llama_text_model.h: Result<std::unique_ptr<TextModel>> CreateLlamaTextModel(const TextModelOptions&);

}  // namespace meshnet
