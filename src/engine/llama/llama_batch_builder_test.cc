#include "engine/llama/llama_batch_builder.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace meshnet {
namespace {

using testing::ElementsAre;

template <typename T>
std::vector<T> Read(const T* data, size_t count) {
  return std::vector<T>(data, data + count);
}

TEST(LlamaBatchBuilderTest, ChunkOfTokensFlagsOnlyItsLastRows) {
  LlamaBatchBuilder builder(2, 4);
  const std::vector<Token> tokens = {7, 8, 9};
  const EngineStep step = {.sequence = SequenceId(5), .start = PastLen(10), .tokens = tokens};
  const uint32_t flagged = 1;
  const llama_batch batch = builder.Build({&step, 1}, {&flagged, 1});
  EXPECT_EQ(batch.n_tokens, 3);
  EXPECT_EQ(batch.embd, nullptr);
  EXPECT_THAT(Read(batch.token, 3), ElementsAre(7, 8, 9));
  EXPECT_THAT(Read(batch.pos, 3), ElementsAre(10, 11, 12));
  EXPECT_THAT(Read(batch.logits, 3), ElementsAre(0, 0, 1));
  EXPECT_EQ(*batch.seq_id[2], 5);
}

TEST(LlamaBatchBuilderTest, HiddenStatesOfTwoSequencesWithFourPositionPlanes) {
  LlamaBatchBuilder builder(2, 4);
  const std::vector<Token> tokens = {1};
  const HiddenState a(1, 2, {0.5f, 1}), b(1, 2, {2, 3});
  const std::vector<EngineStep> steps = {{.sequence = SequenceId(0), .start = PastLen(3), .tokens = tokens, .input = &a},
                                         {.sequence = SequenceId(2), .start = PastLen(9), .tokens = tokens, .input = &b}};
  const std::vector<uint32_t> flagged = {1, 1};
  const llama_batch batch = builder.Build(steps, flagged);
  EXPECT_EQ(batch.token, nullptr);
  EXPECT_THAT(Read(batch.embd, 4), ElementsAre(0.5f, 1, 2, 3));
  EXPECT_THAT(Read(batch.pos, 8), ElementsAre(3, 9, 3, 9, 3, 9, 0, 0));
  EXPECT_EQ(*batch.seq_id[1], 2);
}

TEST(LlamaBatchBuilderDeathTest, RefusesRowsOfAnotherWidth) {
  LlamaBatchBuilder builder(3, 1);
  const std::vector<Token> tokens = {1};
  const HiddenState input(1, 2, {0.5f, 1});
  const EngineStep step = {.sequence = SequenceId(0), .start = PastLen(0), .tokens = tokens, .input = &input};
  const uint32_t flagged = 1;
  EXPECT_DEATH(builder.Build({&step, 1}, {&flagged, 1}), "broken invariant");
}

}  // namespace
}  // namespace meshnet
