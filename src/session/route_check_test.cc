#include "session/route_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

namespace meshnet {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

ShardDescription Shard(uint32_t begin, uint32_t end, uint32_t layers = 30) {
  ShardDescription d;
  d.state = ShardState::kServing;
  d.model_root.bytes.fill(0xab);
  d.model_name = "tiny";
  d.architecture = "llama";
  d.layer_count = layers;
  d.range = {begin, end};
  d.boundary_width = 64;
  d.vocabulary_size = 1000;
  d.limits = {.sessions_max = 8, .context_tokens = 4096, .budget_tokens = 32768, .ttl_seconds = 600, .chunk_rows_max = 512, .window_steps = 4, .frame_bytes_max = 0};
  d.numerics.engine_tree = "tree";
  d.numerics.backend = "CPU";
  d.numerics.kv_type_k = "f16";
  d.numerics.kv_type_v = "f16";
  d.numerics.threads = 2;
  d.numerics.context_tokens = 4096;
  return d;
}

TEST(RouteCheckTest, OrdersStagesByRangeNotByEntry) {
  RouteCheck check = CheckRoute({Shard(20, 30), Shard(0, 10), Shard(10, 20)});
  ASSERT_TRUE(check.status.ok()) << check.status.message();
  EXPECT_THAT(check.order, ElementsAre(1, 2, 0));
  EXPECT_THAT(check.warnings, IsEmpty());
}

TEST(RouteCheckTest, RefusesWhatDoesNotCoverTheModelOnce) {
  struct Row {
    const char* name;
    std::vector<ShardDescription> shards;
    std::vector<const char*> says;
  };
  const Row rows[] = {
      {"nothing", {}, {"no stages"}},
      {"head missing", {Shard(10, 30)}, {"[0,10)", "no stage", "[10,30)"}},
      {"tail missing", {Shard(0, 10), Shard(10, 20)}, {"[20,30)", "no stage", "[10,20)"}},
      {"gap", {Shard(0, 10), Shard(12, 30)}, {"[10,12)", "[0,10)", "[12,30)"}},
      {"overlap", {Shard(0, 12), Shard(10, 30)}, {"[10,12)", "two stages", "[0,12)", "[10,30)"}},
      {"the same worker twice", {Shard(0, 30), Shard(0, 30)}, {"[0,30)", "two stages", "entry 1", "entry 2"}},
      {"a stage inside another", {Shard(0, 30), Shard(10, 20)}, {"[10,20)", "two stages"}},
      {"empty range", {Shard(0, 30), Shard(5, 5)}, {"[5,5)", "impossible"}},
      {"range past the model", {Shard(0, 31)}, {"[0,31)", "impossible", "30 layers"}},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    RouteCheck check = CheckRoute(row.shards);
    EXPECT_EQ(check.status.code(), StatusCode::kRefused);
    EXPECT_THAT(check.order, IsEmpty());
    for (const char* word : row.says) EXPECT_THAT(check.status.message(), HasSubstr(word));
  }
}

TEST(RouteCheckTest, RefusesStagesThatDifferInMeaningAndNamesBothSides) {
  struct Row {
    const char* says;
    std::function<void(ShardDescription&)> change;
    const char* left;
    const char* right;
  };
  const Row rows[] = {
      {"model root", [](ShardDescription& d) { d.model_root.bytes.fill(0xcd); }, "abab", "cdcd"},
      {"architecture", [](ShardDescription& d) { d.architecture = "qwen2"; }, "llama", "qwen2"},
      {"layer count", [](ShardDescription& d) { d.layer_count = 31; }, "30", "31"},
      {"boundary width", [](ShardDescription& d) { d.boundary_width = 128; }, "64", "128"},
      {"vocabulary size", [](ShardDescription& d) { d.vocabulary_size = 1001; }, "1000", "1001"},
      {"llama.cpp tree", [](ShardDescription& d) { d.numerics.engine_tree = "other"; }, "tree", "other"},
      {"numerics mode", [](ShardDescription& d) { d.numerics.mode = NumericsMode::kExact; }, "fast", "exact"},
      {"KV type of keys", [](ShardDescription& d) { d.numerics.kv_type_k = "q8_0"; }, "f16", "q8_0"},
      {"KV type of values", [](ShardDescription& d) { d.numerics.kv_type_v = "bf16"; }, "f16", "bf16"},
      {"flash attention", [](ShardDescription& d) { d.numerics.flash_attention = false; }, "on", "off"},
      {"context of one session", [](ShardDescription& d) { d.numerics.context_tokens = 8192; }, "4096", "8192"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.says);
    ShardDescription other = Shard(10, 30);
    row.change(other);
    RouteCheck check = CheckRoute({Shard(0, 10), other});
    EXPECT_EQ(check.status.code(), StatusCode::kRefused);
    EXPECT_THAT(check.status.message(),
                AllOf(HasSubstr(row.says), HasSubstr(row.left), HasSubstr(row.right), HasSubstr("[0,10)"), HasSubstr("[10,30)")));
  }
}

TEST(RouteCheckTest, RefusesAnotherProtocolThanItsOwn) {
  ShardDescription minor = Shard(0, 30);
  minor.protocol_minor = kProtocolMinor + 1;
  EXPECT_THAT(CheckRoute({minor}).status.message(), AllOf(HasSubstr("[0,30)"), HasSubstr("1.1"), HasSubstr("1.0")));
  ShardDescription major = Shard(0, 30);
  major.protocol_major = kProtocolMajor + 1;
  EXPECT_EQ(CheckRoute({major}).status.code(), StatusCode::kRefused);
}

TEST(RouteCheckTest, RefusesLimitsThatCouldNotRunAStep) {
  ShardDescription shard = Shard(0, 30);
  shard.limits.chunk_rows_max = 0;
  EXPECT_THAT(CheckRoute({shard}).status.message(), HasSubstr("chunk_rows_max 0"));
}

TEST(RouteCheckTest, WarnsOnlyOfWhatMovesLastBits) {
  ShardDescription other = Shard(10, 30);
  other.numerics.threads = 4;
  other.numerics.cpu_features = "AVX512";
  other.model_name = "the same file under another name";
  RouteCheck check = CheckRoute({Shard(0, 10), other});
  ASSERT_TRUE(check.status.ok()) << check.status.message();
  EXPECT_THAT(check.warnings, ElementsAre(HasSubstr("CPU features"), HasSubstr("threads")));
}

TEST(RouteCheckTest, LimitsAreTheSmallestOfAllStages) {
  Stage head{nullptr, Shard(0, 10)}, tail{nullptr, Shard(10, 30)};
  head.description.limits.chunk_rows_max = 128;
  head.description.limits.sessions_max = 4;
  tail.description.limits.context_tokens = 2048;
  tail.description.limits.budget_tokens = 10000;
  tail.description.truncation_class = TruncationClass::kWindow;
  const Stage stages[] = {head, tail};
  RouteLimits limits = LimitsOf(stages);
  EXPECT_EQ(limits.chunk_rows_max, 128u);
  EXPECT_EQ(limits.sessions_max, 4u);
  EXPECT_EQ(limits.context_tokens, 2048u);
  EXPECT_EQ(limits.budget_tokens, 10000u);
  EXPECT_EQ(limits.truncation_class, TruncationClass::kWindow);
}

TEST(RouteCheckTest, AChunkFitsEveryFrame) {
  Stage stage{nullptr, Shard(0, 30)};
  stage.description.limits.frame_bytes_max = 4096 + 64 * 4 * 100 + 17;
  EXPECT_EQ(LimitsOf({&stage, 1}).chunk_rows_max, 100u);
  stage.description.limits.frame_bytes_max = 1;
  EXPECT_EQ(LimitsOf({&stage, 1}).chunk_rows_max, 1u);
}

TEST(RouteCheckTest, NamesTheLayersThatAreMissing) {
  EXPECT_THAT(MissingRanges({Shard(0, 10), Shard(20, 25)}), ElementsAre(LayerRange{10, 20}, LayerRange{25, 30}));
  EXPECT_THAT(MissingRanges({Shard(0, 30)}), IsEmpty());
  EXPECT_THAT(MissingRanges({}), IsEmpty());
}

}  // namespace
}  // namespace meshnet
