#include "cli/memory_need.h"

#include "gtest/gtest.h"

namespace meshnet::cli {
namespace {

TEST(MemoryNeedTest, AttentionTakesTheMaskAndWithoutFlashAttentionTheScores) {
  EngineSettings settings;
  settings.ubatch_rows = 128;
  const ShardSize shard = {.range = {1, 2}, .layer_count = 3, .boundary_width = 64, .tensor_bytes = 1000, .hole_bytes = 100};
  plan::KvEstimate kv;
  const uint64_t without = NeedOf(shard, settings, kv).compute_bytes;
  kv.cells = 4096;
  kv.heads = 9;
  EXPECT_EQ(NeedOf(shard, settings, kv).compute_bytes - without, 128u * 4096 * 2);
  settings.flash_attention = false;
  EXPECT_EQ(NeedOf(shard, settings, kv).compute_bytes - without, 128u * 4096 * (4 + 9 * 4));
  EXPECT_EQ(NeedOf(shard, settings, kv).weight_bytes, 900u);
}

}  // namespace
}  // namespace meshnet::cli
