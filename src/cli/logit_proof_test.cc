#include "cli/logit_proof.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace meshnet::cli {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kLargest = std::numeric_limits<double>::max();

TEST(LogitProofTest, ZeroMeansBitEqual) {
  struct Row {
    const char* name;
    float one, other;
    double difference;
  };
  for (const Row& row : {
           Row{"equal", 1.5f, 1.5f, 0}, Row{"one step of the last bit", 1.0f, std::nextafter(1.0f, 2.0f), std::nextafter(1.0f, 2.0f) - 1.0},
           Row{"far apart", -1.0f, 2.0f, 3.0}, Row{"not a number on both sides", kNan, kNan, 0}, Row{"not a number on one", kNan, 1.0f, kLargest},
           Row{"infinite on one", kInfinity, 1.0f, kLargest}, Row{"infinite on both", kInfinity, kInfinity, 0},
       }) {
    EXPECT_EQ(LargestDifference(std::vector<float>{0, row.one}, std::vector<float>{0, row.other}), row.difference) << row.name;
  }
  EXPECT_EQ(LargestDifference(std::vector<float>{1}, std::vector<float>{1, 2}), kLargest) << "another width";
}

TEST(LogitProofTest, APromptRowThatDiffersIsADifferenceEvenIfTokensAreEqual) {
  SessionProof proof;
  CompareRows(HiddenState(2, 2, {0, 1, 0, 1}), HiddenState(2, 2, {0.25f, 1, 0, 1}), 10, 11, &proof);
  EXPECT_TRUE(proof.tokens_equal);
  EXPECT_EQ(proof.max_abs_logit_diff, 0.25);
  EXPECT_EQ(proof.first_difference, "row of position 10");
  EXPECT_FALSE(proof.equal());
}

TEST(LogitProofTest, OnlyGeneratedPositionsDecideOnTokens) {
  SessionProof prompt, generated;
  CompareRows(HiddenState(1, 2, {0, 1}), HiddenState(1, 2, {1, 0}), 3, 4, &prompt);
  CompareRows(HiddenState(1, 2, {0, 1}), HiddenState(1, 2, {1, 0}), 4, 4, &generated);
  EXPECT_TRUE(prompt.tokens_equal);
  EXPECT_FALSE(generated.tokens_equal);
}

TEST(LogitProofTest, AMissingRowIsADifference) {
  SessionProof proof;
  CompareRows(HiddenState(1, 1, {0}), HiddenState(2, 1, {0, 0}), 0, 9, &proof);
  EXPECT_EQ(proof.max_abs_logit_diff, kLargest);
}

TEST(LogitProofTest, TheFirstOfEquallyLikelyTokensIsChosen) {
  EXPECT_EQ(Likeliest(std::vector<float>{1, 3, 3, 2}), 1);
}

}  // namespace
}  // namespace meshnet::cli
