// The fields of a request that both endpoints share and that the answer, not the model, is made of; and the sampling parameters. Pure.
// What is honoured is what these functions read; everything else a client sends is either in IgnoredFields() with its reason, or a 400.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "text/request_fields.h"
#include "text/text_model.h"

namespace meshnet::text {

inline constexpr uint32_t kChoicesMax = 8;            // `n`
inline constexpr uint32_t kTopLogprobsMax = 20;       // OpenAI's bound
inline constexpr size_t kStopsMax = 64;
inline constexpr size_t kStopBytesMax = 1024;

struct AnswerFields {
  std::string model;
  bool stream = false;
  bool include_usage = false;
  uint32_t tokens_max = 0;             // 0: until the context is full
  uint32_t count = 1;                  // `n`
  std::optional<uint32_t> seed;        // nothing: random
  std::vector<std::string> stops;
  std::string prompt_cache_key;
  bool reuse = true;                   // cache_prompt
  bool return_tokens = false;
  bool logprobs_wanted = false;
  uint32_t logprobs = 0;
  bool post_sampling_probs = false;
};

AnswerFields ReadAnswerFields(FieldReader& fields, ApiKind kind);

// llama-server's sampling parameters, checked, under its names, for server_schema::eval_llama_cmpl_schema. Windows of past tokens are cut to the
// context: they never hold more, and llama.cpp allocates them whole.
nlohmann::ordered_json ReadSamplingFields(FieldReader& fields, uint32_t context_tokens, uint32_t vocabulary_size);

// Accepted without effect, each with the reason why that is no lie.
std::span<const KnownField> IgnoredFields();
// Refused with a reason of their own instead of a plain "not supported".
std::span<const KnownField> RefusedFields();
// Fields whose neutral value asks for what happens anyway; any other value is refused.
void ReadNeutralFields(FieldReader& fields);

}  // namespace meshnet::text
