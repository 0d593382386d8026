#include "engine/llama/engine_settings.h"

#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace meshnet {
namespace {

using testing::HasSubstr;

TEST(EngineSettingsTest, DefaultsArePartitionedWithSmallChunks) {
  const EngineSettings settings = *ResolveSettings(EngineOptions(), OutputRows::kAll, 6);
  EXPECT_EQ(settings.chunk_rows, 128u);
  EXPECT_EQ(settings.batch_tokens, 128u);
  EXPECT_TRUE(settings.partitioned);
  EXPECT_EQ(settings.cells, 32768u);
  EXPECT_EQ(settings.threads, 6u);
  EXPECT_TRUE(settings.repack);
  EXPECT_EQ(settings.kv_type_k, "f16");

  EngineOptions large;
  large.ubatch_tokens = 512;
  EXPECT_EQ(ResolveSettings(large, OutputRows::kAll, 6)->chunk_rows, 512u);
  EXPECT_EQ(ResolveSettings(large, OutputRows::kAll, 6)->output_rows, 512u);
  EXPECT_EQ(ResolveSettings(large, OutputRows::kFew, 6)->chunk_rows, 512u);
  EXPECT_EQ(ResolveSettings(large, OutputRows::kFew, 6)->output_rows, 128u);
}

TEST(EngineSettingsTest, ExactPinsWhatDecidesLastBits) {
  EngineOptions options;
  options.numerics = NumericsMode::kExact;
  const EngineSettings settings = *ResolveSettings(options, OutputRows::kAll, 2);
  EXPECT_FALSE(settings.repack);
  options.ubatch_tokens = 4;
  EXPECT_EQ(ResolveSettings(options, OutputRows::kAll, 2)->chunk_rows, 4u);
  EXPECT_EQ(ResolveSettings(options, OutputRows::kAll, 2)->ubatch_rows, 128u) << "the rings of windows have one size";
  EXPECT_TRUE(settings.flash_attention);
  EXPECT_EQ(settings.kv_type_k, "bf16");
  EXPECT_EQ(settings.kv_type_v, "bf16");
}

TEST(EngineSettingsTest, OneCellPoolWhenTheBudgetIsShort) {
  EngineOptions options;
  options.sessions_max = 4;
  options.context_tokens = 1000;
  options.budget_tokens = 3999;
  EngineSettings settings = *ResolveSettings(options, OutputRows::kAll, 2);
  EXPECT_FALSE(settings.partitioned);
  EXPECT_EQ(settings.cells, 4096u);

  options.numerics = NumericsMode::kExact;
  EXPECT_TRUE(ResolveSettings(options, OutputRows::kAll, 4)->partitioned);
  options.numerics = NumericsMode::kFast;

  options.budget_tokens = 4000;
  settings = *ResolveSettings(options, OutputRows::kAll, 2);
  EXPECT_TRUE(settings.partitioned);
  EXPECT_EQ(settings.cells, 4 * 1024u);
  EXPECT_EQ(KvSettingsOf(settings).context_tokens, 1024u);
}

TEST(EngineSettingsTest, NamesWhatIsWrong) {
  struct Case {
    std::string name;
    std::function<void(EngineOptions&)> change;
    StatusCode code;
    std::string message;
  };
  const auto exact = [](EngineOptions& o) { o.numerics = NumericsMode::kExact; };
  const std::vector<Case> cases = {
      {"no session", [](EngineOptions& o) { o.sessions_max = 0; }, StatusCode::kBadConfiguration, "number of sessions is 0"},
      {"257 sessions", [](EngineOptions& o) { o.sessions_max = 257; }, StatusCode::kBadConfiguration, "between 1 and 256"},
      {"no context", [](EngineOptions& o) { o.context_tokens = 0; }, StatusCode::kBadConfiguration, "-c"},
      {"context above budget", [](EngineOptions& o) { o.budget_tokens = 4095; }, StatusCode::kBadConfiguration, "more than the budget of 4095"},
      {"ubatch 0", [](EngineOptions& o) { o.ubatch_tokens = 0; }, StatusCode::kBadConfiguration, "-ub is 0"},
      {"exact with larger rings", [exact](EngineOptions& o) { exact(o), o.ubatch_tokens = 129; }, StatusCode::kRefused, "not with -ub 129"},
      {"513 threads", [](EngineOptions& o) { o.threads = 513; }, StatusCode::kBadConfiguration, "-t is 513"},
      {"unknown KV type", [](EngineOptions& o) { o.kv_type_k = "q9"; }, StatusCode::kBadConfiguration, "-ctk q9 is not a KV type"},
      {"quantised V without flash attention",
       [](EngineOptions& o) {
         o.kv_type_v = "q8_0";
         o.flash_attention = false;
       },
       StatusCode::kBadConfiguration, "needs flash attention"},
      {"exact with f16 KV",
       [&](EngineOptions& o) {
         exact(o);
         o.kv_type_v = "f16";
       },
       StatusCode::kRefused, "not for -ctv f16"},
      {"exact without flash attention",
       [&](EngineOptions& o) {
         exact(o);
         o.flash_attention = false;
       },
       StatusCode::kRefused, "-fa off"},
      {"exact on a GPU",
       [&](EngineOptions& o) {
         exact(o);
         o.gpu_layers = 3;
       },
       StatusCode::kRefused, "-ngl 0"},
  };
  for (const Case& row : cases) {
    EngineOptions options;
    row.change(options);
    const Status status = ResolveSettings(options, OutputRows::kAll, 2).status();
    EXPECT_EQ(status.code(), row.code) << row.name;
    EXPECT_THAT(status.message(), HasSubstr(row.message)) << row.name;
  }
}

}  // namespace
}  // namespace meshnet
