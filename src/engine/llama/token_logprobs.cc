#include "engine/llama/token_logprobs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "base/check.h"

namespace meshnet {

namespace {

// In lanes that become vector registers.
float Highest(std::span<const float> values) {
  constexpr size_t kLanes = 16;
  std::array<float, kLanes> lanes;
  lanes.fill(-INFINITY);
  for (; values.size() >= kLanes; values = values.subspan(kLanes)) {
    for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] = values[lane] > lanes[lane] ? values[lane] : lanes[lane];
  }
  for (float value : values) lanes[0] = std::max(lanes[0], value);
  return *std::ranges::max_element(lanes);
}

}  // namespace

// Block by block for the value, then its place in the block: several times as fast as std::max_element, and a batch of greedy sessions waits
// for it row by row.
Token HighestToken(std::span<const float> logits) {
  constexpr size_t kBlock = 512;
  size_t best = 0;
  float highest = -INFINITY;
  for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const float value = Highest(logits.subspan(begin, std::min(kBlock, logits.size() - begin)));
    if (value > highest) highest = value, best = begin;
  }
  return static_cast<Token>(std::ranges::find(logits.subspan(best), highest) - logits.begin());
}

std::optional<Token> HighestToken(std::span<const float> logits, std::span<const LogitBias> biases) {
  std::optional<Token> best;
  float highest = -INFINITY;
  const auto offer = [&](size_t token, float logit) {
    if (logit > highest) highest = logit, best = static_cast<Token>(token);
  };
  size_t begin = 0;
  for (auto bias = biases.begin(); begin < logits.size();) {
    const size_t end = bias == biases.end() ? logits.size() : static_cast<size_t>(bias->token);
    if (end > begin) {
      const size_t token = begin + static_cast<size_t>(HighestToken(logits.subspan(begin, end - begin)));
      offer(token, logits[token]);
    }
    if (bias == biases.end()) break;
    float logit = logits[end];
    for (; bias != biases.end() && static_cast<size_t>(bias->token) == end; ++bias) logit += bias->bias;
    offer(end, logit);
    begin = end + 1;
  }
  return best;
}

TokenLogprobs LogprobsOf(std::span<const float> logits, Token token, uint32_t count) {
  MESHNET_CHECK(token >= 0 && static_cast<size_t>(token) < logits.size());
  const float highest = logits[static_cast<size_t>(HighestToken(logits))];
  double sum = 0;
  for (float logit : logits) sum += std::exp(static_cast<double>(logit) - highest);
  const double log_sum = highest + std::log(sum);

  TokenLogprobs result;
  result.of_token = static_cast<float>(logits[static_cast<size_t>(token)] - log_sum);
  std::vector<Token> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const size_t wanted = std::min<size_t>(count, order.size());
  auto higher = [&](Token a, Token b) {
    const float la = logits[static_cast<size_t>(a)], lb = logits[static_cast<size_t>(b)];
    return la != lb ? la > lb : a < b;
  };
  std::partial_sort(order.begin(), order.begin() + static_cast<ptrdiff_t>(wanted), order.end(), higher);
  for (size_t i = 0; i < wanted; ++i) {
    result.top.push_back({order[i], static_cast<float>(logits[static_cast<size_t>(order[i])] - log_sum)});
  }
  return result;
}

}  // namespace meshnet
