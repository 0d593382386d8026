// Log probabilities of one row. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "protocol/sampling_params.h"

namespace meshnet {

struct TokenLogprobs {
  float of_token = 0;
  std::vector<TokenLogprob> top;  // highest first; ties by token
};

// Natural logarithms over the whole row (the vocabulary's raw logits). `count` may exceed the row.
TokenLogprobs LogprobsOf(std::span<const float> logits, Token token, uint32_t count);

// The token with the highest logit; the lowest id of equal ones. None is NaN.
Token HighestToken(std::span<const float> logits);
// The same once each bias was added to its token's logit; `biases` is sorted by token, of which each is in the row. Nothing when none is left.
std::optional<Token> HighestToken(std::span<const float> logits, std::span<const LogitBias> biases);

}  // namespace meshnet
