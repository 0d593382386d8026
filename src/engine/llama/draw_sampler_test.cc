#include "engine/llama/draw_sampler.h"

#include <cmath>
#include <set>
#include <vector>

#include "engine/llama/counter_random.h"
#include "gtest/gtest.h"

namespace meshnet {
namespace {

int64_t Chosen(std::vector<llama_token_data> candidates, Draw& draw) {
  llama_token_data_array array = {candidates.data(), candidates.size(), -1, false};
  DrawFrom(array, draw);
  return array.selected;
}

TEST(DrawSamplerTest, DrawsInProportionToTheWeights) {
  const std::vector<llama_token_data> candidates = {{0, std::log(0.5f), 0}, {1, std::log(0.125f), 0}, {2, std::log(0.375f), 0}};
  std::vector<int> counts(3);
  for (uint32_t position = 0; position < 8000; ++position) {
    Draw draw = {.seed = 7, .position = position};
    ++counts[static_cast<size_t>(Chosen(candidates, draw))];
  }
  EXPECT_NEAR(counts[0], 4000, 200);
  EXPECT_NEAR(counts[1], 1000, 120);
  EXPECT_NEAR(counts[2], 3000, 200);
}

TEST(DrawSamplerTest, NeverChoosesWhatIsForbidden) {
  const std::vector<llama_token_data> candidates = {{0, -INFINITY, 0}, {1, 1, 0}, {2, -INFINITY, 0}};
  for (uint32_t position = 0; position < 100; ++position) {
    Draw draw = {.seed = 1, .position = position};
    EXPECT_EQ(Chosen(candidates, draw), 1);
  }
  Draw draw;
  Chosen({{0, -INFINITY, 0}}, draw);
  EXPECT_TRUE(draw.nothing_left);
}

TEST(DrawSamplerTest, EverySeedPositionAndAttemptIsItsOwnDraw) {
  std::set<double> draws;
  for (uint32_t seed : {0u, 1u, 2u}) {
    for (uint32_t position : {0u, 1u, 2u}) {
      for (uint32_t attempt : {0u, 1u, 2u}) draws.insert(UniformAt(seed, position, attempt));
    }
  }
  EXPECT_EQ(draws.size(), 27u);
  EXPECT_GE(*draws.begin(), 0.0);
  EXPECT_LT(*draws.rbegin(), 1.0);
  // Part of what a seed means: changing it changes every answer that was promised to be repeatable.
  EXPECT_DOUBLE_EQ(UniformAt(42, 7, 0), UniformAt(42, 7, 0));
}

}  // namespace
}  // namespace meshnet
