// How the tail picks a token: llama-server's sampling parameters, names and defaults (llama.cpp common/common.h, common_params_sampling),
// plus what makes a draw repeatable: randomness is f(seed, position), and penalties and grammar derive from the token log.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"

namespace meshnet {

struct LogitBias {
  Token token = 0;
  float bias = 0;  // added to the logit; -inf forbids the token
  friend bool operator==(const LogitBias&, const LogitBias&) = default;
};

// Same numbers as llama.cpp's common_grammar_trigger_type.
struct GrammarTrigger {
  int32_t type = 0;
  std::string value;
  Token token = -1;
  friend bool operator==(const GrammarTrigger&, const GrammarTrigger&) = default;
};

struct SamplingParams {
  uint32_t seed = 0;             // the gateway resolves "random" to a number, so that a re-driven position draws the same
  // Where generated tokens begin: tokens before it are the prompt, which feeds penalties but not the grammar.
  PastLen prompt_len;

  float temperature = 0.8f;      // <= 0: greedy
  float dynatemp_range = 0.0f;
  float dynatemp_exponent = 1.0f;
  int32_t top_k = 40;            // <= 0: whole vocabulary
  float top_p = 0.95f;
  float min_p = 0.05f;
  float top_n_sigma = -1.0f;
  float typical_p = 1.0f;
  float xtc_probability = 0.0f;
  float xtc_threshold = 0.1f;
  int32_t min_keep = 0;
  int32_t repeat_last_n = 64;
  float repeat_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  float dry_multiplier = 0.0f;
  float dry_base = 1.75f;
  int32_t dry_allowed_length = 2;
  int32_t dry_penalty_last_n = 64;
  std::vector<std::string> dry_sequence_breakers = {"\n", ":", "\"", "*"};
  int32_t mirostat = 0;
  float mirostat_tau = 5.0f;
  float mirostat_eta = 0.1f;
  float adaptive_target = -1.0f;
  float adaptive_decay = 0.9f;
  bool ignore_eos = false;
  std::string samplers;          // llama.cpp's one letter per sampler, in order; empty: the default chain
  std::vector<LogitBias> logit_bias;

  std::string grammar;           // GBNF; empty: unconstrained
  int32_t grammar_type = 0;      // llama.cpp's common_grammar_type
  bool grammar_lazy = false;
  std::vector<GrammarTrigger> grammar_triggers;
  std::vector<Token> preserved_tokens;
  std::string generation_prompt; // assistant text that the template put at the end of the prompt; advances the grammar
  int32_t reasoning_budget_tokens = -1;
  std::vector<Token> reasoning_budget_start;
  std::vector<std::vector<Token>> reasoning_budget_end;
  std::vector<Token> reasoning_budget_forced;

  uint32_t logprobs = 0;         // alternatives to report per sampled token (top_logprobs / n_probs)
  bool logprobs_wanted = false;  // report the sampled token's own logprob
  bool post_sampling_probs = false;

  friend bool operator==(const SamplingParams&, const SamplingParams&) = default;
};

struct TokenLogprob {
  Token token = 0;
  float logprob = 0;  // natural logarithm over the whole vocabulary before sampling; with post_sampling_probs, after the chain
  friend bool operator==(const TokenLogprob&, const TokenLogprob&) = default;
};

struct SampledToken {
  Token token = 0;
  bool end_of_generation = false;
  std::optional<float> logprob;
  std::vector<TokenLogprob> top;  // highest first
  friend bool operator==(const SampledToken&, const SampledToken&) = default;
};

}  // namespace meshnet
