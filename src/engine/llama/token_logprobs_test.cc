#include "engine/llama/token_logprobs.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "gtest/gtest.h"

namespace meshnet {
namespace {

TEST(TokenLogprobsTest, SumsToOneAndSortsHighestFirst) {
  const std::vector<float> logits = {1, 3, 3, -1};
  const TokenLogprobs result = LogprobsOf(logits, 0, 9);
  ASSERT_EQ(result.top.size(), 4u);
  EXPECT_EQ(result.top[0].token, 1);
  EXPECT_EQ(result.top[1].token, 2);
  EXPECT_EQ(result.top[3].token, 3);
  EXPECT_FLOAT_EQ(result.of_token, result.top[2].logprob);
  double sum = 0;
  for (const TokenLogprob& token : result.top) sum += std::exp(token.logprob);
  EXPECT_NEAR(sum, 1.0, 1e-6);
  EXPECT_EQ(HighestToken(logits), 1);
}

TEST(TokenLogprobsTest, TheFirstOfTheHighestIsFoundWhereverItIs) {
  std::mt19937 random(1);
  for (size_t size : {1, 15, 16, 17, 511, 512, 513, 1100}) {
    for (int round = 0; round < 200; ++round) {
      std::vector<float> logits(size);
      for (float& logit : logits) logit = static_cast<float>(random() % 40) - 30;  // often equal
      const auto highest = std::max_element(logits.begin(), logits.end());
      ASSERT_EQ(HighestToken(logits), highest - logits.begin()) << size;
      std::fill(highest, logits.end(), -INFINITY);
      ASSERT_EQ(HighestToken(logits), std::max_element(logits.begin(), logits.end()) - logits.begin()) << size;
    }
  }
}

TEST(TokenLogprobsTest, TheHighestTokenIsLookedForBehindTheBiases) {
  const std::vector<float> logits = {1, 3, 2, 3, -1};
  using Biases = std::vector<LogitBias>;
  EXPECT_EQ(HighestToken(logits, Biases{}), 1);
  EXPECT_EQ(HighestToken(logits, Biases{{1, -INFINITY}}), 3);
  EXPECT_EQ(HighestToken(logits, Biases{{1, -1.0f}, {3, -INFINITY}}), 1);
  EXPECT_EQ(HighestToken(logits, Biases{{0, 1.5f}, {0, 1.0f}}), 0);
  EXPECT_EQ(HighestToken(logits, Biases{{4, 5}}), 4);
  Biases all;
  for (Token token = 0; token < 5; ++token) all.push_back({token, -INFINITY});
  EXPECT_EQ(HighestToken(logits, all), std::nullopt);
}

TEST(TokenLogprobsTest, LargeLogitsDoNotOverflow) {
  const std::vector<float> logits = {3e38f, 1, 0};
  EXPECT_FLOAT_EQ(LogprobsOf(logits, 0, 0).of_token, 0.0f);
  EXPECT_TRUE(LogprobsOf(logits, 0, 0).top.empty());
}

}  // namespace
}  // namespace meshnet
