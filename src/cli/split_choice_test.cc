#include "cli/split_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace meshnet::cli {
namespace {

using testing::ElementsAre;

gguf::ModelShape EvenModel(uint32_t layers, uint64_t bytes_each) {
  gguf::ModelShape shape;
  shape.architecture = "llama";
  shape.name = "even";
  shape.layer_count = layers;
  shape.layers.resize(layers);
  for (gguf::LayerShape& layer : shape.layers) layer.weight_bytes = bytes_each;
  return shape;
}

gguf::LegalCuts AllCuts(uint32_t layers) {
  gguf::LegalCuts legal;
  for (uint32_t cut = 1; cut < layers; ++cut) legal.cuts.push_back(cut);
  return legal;
}

TEST(SplitChoiceTest, CutsEvenLayersEvenly) {
  Result<std::vector<LayerRange>> ranges = ChooseRanges(EvenModel(30, 10), AllCuts(30), 3, 0);
  ASSERT_TRUE(ranges.ok());
  EXPECT_THAT(*ranges, ElementsAre(LayerRange{0, 10}, LayerRange{10, 20}, LayerRange{20, 30}));
}

TEST(SplitChoiceTest, TheOutputMatrixCountsAsLayersOfTheTail) {
  Result<std::vector<LayerRange>> ranges = ChooseRanges(EvenModel(28, 10), AllCuts(28), 2, 60);
  ASSERT_TRUE(ranges.ok());
  EXPECT_THAT(*ranges, ElementsAre(LayerRange{0, 17}, LayerRange{17, 28}));
}

TEST(SplitChoiceTest, TakesTheNearestLegalCut) {
  Result<std::vector<LayerRange>> ranges = ChooseRanges(EvenModel(18, 10), {{6, 12}, "multiples of six"}, 2, 0);
  ASSERT_TRUE(ranges.ok());
  EXPECT_EQ((*ranges)[0].end, (*ranges)[1].begin);
  EXPECT_TRUE((*ranges)[0].end == 6 || (*ranges)[0].end == 12);
}

TEST(SplitChoiceTest, OneShardIsTheWholeModelEvenWithoutLegalCuts) {
  Result<std::vector<LayerRange>> ranges = ChooseRanges(EvenModel(4, 1), {{}, "unknown"}, 1, 7);
  ASSERT_TRUE(ranges.ok());
  EXPECT_THAT(*ranges, ElementsAre(LayerRange{0, 4}));
}

TEST(SplitChoiceTest, RefusesByNameAndReason) {
  Result<std::vector<LayerRange>> ranges = ChooseRanges(EvenModel(18, 10), {{6}, "RoPE follows the absolute layer"}, 3, 0);
  ASSERT_FALSE(ranges.ok());
  EXPECT_EQ(ranges.status().code(), StatusCode::kRefused);
  EXPECT_THAT(ranges.status().message(), testing::AllOf(testing::HasSubstr("llama"), testing::HasSubstr("RoPE follows the absolute layer")));
}

TEST(SplitChoiceTest, MoreShardsThanLayersIsABadConfiguration) {
  for (uint32_t count : {0u, 5u}) {
    Result<std::vector<LayerRange>> ranges = ChooseRanges(EvenModel(4, 1), AllCuts(4), count, 0);
    ASSERT_FALSE(ranges.ok());
    EXPECT_EQ(ranges.status().code(), StatusCode::kBadConfiguration);
  }
}

TEST(SplitChoiceTest, EveryLayerItsOwnShard) {
  Result<std::vector<LayerRange>> ranges = ChooseRanges(EvenModel(3, 1), AllCuts(3), 3, 1000);
  ASSERT_TRUE(ranges.ok());
  EXPECT_THAT(*ranges, ElementsAre(LayerRange{0, 1}, LayerRange{1, 2}, LayerRange{2, 3}));
}

}  // namespace
}  // namespace meshnet::cli
