// KV bytes by hand. The same formulas are compared with llama.cpp's own figures on real models elsewhere.
#include "plan/memory_estimate.h"

#include <gtest/gtest.h>

namespace meshnet::plan {
namespace {

using gguf::LayerKind;

// `windowed` says per layer whether it has a sliding window of 100 tokens.
gguf::ModelShape Shape(const std::vector<bool>& windowed, uint32_t elements = 64) {
  gguf::ModelShape shape;
  shape.layer_count = static_cast<uint32_t>(windowed.size());
  for (bool window : windowed) {
    gguf::LayerShape layer;
    layer.kind = window ? LayerKind::kWindowAttention : LayerKind::kFullAttention;
    layer.key_elements = layer.value_elements = elements;
    shape.layers.push_back(layer);
    if (window) shape.window_tokens = 100;
  }
  return shape;
}

KvSettings Settings(uint32_t sessions, uint32_t context, uint32_t budget) {
  KvSettings settings;
  settings.sessions = sessions;
  settings.context_tokens = context;
  settings.budget_tokens = budget;
  settings.ubatch_tokens = 64;
  return settings;
}

constexpr uint64_t kRow = 2 * 64 * 2;  // key and value of 64 f16 values

TEST(MemoryEstimateTest, PartitionedCachesAreRoundedPerSession) {
  const gguf::ModelShape shape = Shape({false, false, false});
  const Result<KvEstimate> estimate = EstimateKv(shape, {0, 2}, Settings(2, 1000, 4000));
  ASSERT_TRUE(estimate.ok());
  EXPECT_EQ(estimate->bytes_per_token, 2 * kRow);
  EXPECT_EQ(estimate->bytes, 2 * 2 * 1024 * kRow);  // layers * sessions * cells
  // 3 * 300 tokens are 1024 cells in all, 341 each, and so 512 each.
  EXPECT_EQ(EstimateKv(shape, {0, 1}, Settings(3, 300, 900))->bytes, 3 * 512 * kRow);
}

TEST(MemoryEstimateTest, UnifiedCacheHasTheBudget) {
  const gguf::ModelShape shape = Shape({false});
  EXPECT_EQ(EstimateKv(shape, {0, 1}, Settings(8, 1000, 4000))->bytes, 4096 * kRow);
  // Just enough budget makes it partitioned.
  EXPECT_EQ(EstimateKv(shape, {0, 1}, Settings(4, 1000, 4000))->bytes, 4 * 1024 * kRow);
  EXPECT_EQ(EstimateKv(shape, {0, 1}, Settings(4, 1001, 4000))->bytes, 4096 * kRow);
}

TEST(MemoryEstimateTest, WindowCachesHoldTheWindowAndAMicroBatch) {
  const gguf::ModelShape shape = Shape({true, false, true});
  const Result<KvEstimate> one = EstimateKv(shape, {0, 3}, Settings(1, 4096, 4096));
  EXPECT_EQ(one->bytes_per_token, kRow);
  EXPECT_EQ(one->bytes, (4096 + 2 * 256) * kRow);  // 100 + 64 -> 256
  // Unified: all windows share one cache, 8 * 100 + 64 -> 1024.
  EXPECT_EQ(EstimateKv(shape, {0, 1}, Settings(8, 1024, 4096))->bytes, 1024 * kRow);
  // Never more than the full cache.
  EXPECT_EQ(EstimateKv(shape, {0, 1}, Settings(1, 256, 256))->bytes, 256 * kRow);
}

TEST(MemoryEstimateTest, ARowAttendsToTheCellsOfItsStream) {
  gguf::ModelShape shape = Shape({true, false, false});
  shape.layers[1].heads = 4;
  shape.layers[2].heads = 9;
  const Result<KvEstimate> partitioned = EstimateKv(shape, {0, 2}, Settings(4, 1000, 4000));
  EXPECT_EQ(partitioned->cells, 1024u);
  EXPECT_EQ(partitioned->heads, 4u);
  EXPECT_EQ(EstimateKv(shape, {0, 3}, Settings(8, 1000, 4000))->cells, 4096u);
  EXPECT_EQ(EstimateKv(shape, {0, 1}, Settings(1, 4096, 4096))->cells, 256u);  // windows only
}

TEST(MemoryEstimateTest, OnlyLayersOfTheRangeWithKvCount) {
  gguf::ModelShape shape = Shape({false, false, false, false});
  shape.layers[2].kind = LayerKind::kNone;
  EXPECT_EQ(EstimateKv(shape, {1, 4}, Settings(1, 256, 256))->bytes, 2 * 256 * kRow);
  shape.layers[3].value_elements = 0;  // latent attention keeps keys only
  EXPECT_EQ(EstimateKv(shape, {3, 4}, Settings(1, 256, 256))->bytes, 256 * kRow / 2);
}

TEST(MemoryEstimateTest, QuantizedRows) {
  EXPECT_EQ(RowBytes("q8_0", 64).value(), 68u);
  EXPECT_EQ(RowBytes("bf16", 3).value(), 6u);
  EXPECT_EQ(RowBytes("q4_0", 0).value(), 0u);
  EXPECT_EQ(RowBytes("q8_0", 48).status().code(), StatusCode::kBadConfiguration);
  EXPECT_EQ(RowBytes("q9_9", 64).status().code(), StatusCode::kBadConfiguration);
  KvSettings settings = Settings(1, 256, 256);
  settings.type_k = "q8_0";
  EXPECT_EQ(EstimateKv(Shape({false}), {0, 1}, settings)->bytes, 256u * (68 + 128));
  EXPECT_EQ(EstimateKv(Shape({false}, 48), {0, 1}, settings).status().code(), StatusCode::kBadConfiguration);
}

TEST(MemoryEstimateTest, SettingsThatCannotBe) {
  const gguf::ModelShape shape = Shape({false});
  for (const KvSettings& settings : {Settings(0, 256, 256), Settings(257, 1, 257), Settings(1, 0, 256), Settings(1, 257, 256)}) {
    EXPECT_EQ(EstimateKv(shape, {0, 1}, settings).status().code(), StatusCode::kBadConfiguration);
  }
  EXPECT_EQ(EstimateKv(shape, {0, 2}, Settings(1, 1, 1)).status().code(), StatusCode::kBadConfiguration);
  EXPECT_EQ(EstimateKv(shape, {0, 0}, Settings(1, 1, 1)).status().code(), StatusCode::kBadConfiguration);
}

}  // namespace
}  // namespace meshnet::plan
