// Log probabilities of an answer's tokens in OpenAI's shapes. Pure.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "text/text_model.h"

namespace meshnet::text {

// One sampled token that is part of the visible text.
struct TokenEntry {
  SampledToken sampled;
  std::string bytes;                    // its part of the visible text
  size_t text_offset = 0;               // characters before it
  std::vector<std::string> top_bytes;   // of sampled.top
};

enum class ProbabilityForm { kLogarithm, kProbability };  // the latter: post_sampling_probs

// `logprobs` of a choice: for chat `{"content": […]}`; for completions the same plus the arrays tokens, token_logprobs, top_logprobs, text_offset.
nlohmann::ordered_json LogprobsJson(ApiKind kind, std::span<const TokenEntry> entries, ProbabilityForm form);

}  // namespace meshnet::text
