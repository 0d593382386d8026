#include "worker/hot_kv_settings.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace meshnet {
namespace {

using Environment = std::map<std::string, std::string>;

Result<HotKvSettings> Read(const Environment& environment) {
  return ReadHotKvSettings([&](const char* name) -> const char* {
    auto entry = environment.find(std::string("MESHNET_HOT_KV_") + (name + 15));
    return entry == environment.end() ? nullptr : entry->second.c_str();
  });
}

TEST(HotKvSettingsTest, HasTheDefaultsOfTheContract) {
  Result<HotKvSettings> settings = Read({});
  ASSERT_TRUE(settings.ok());
  EXPECT_EQ(settings->sessions_max, 8u);
  EXPECT_EQ(settings->context_tokens, 4096u);
  EXPECT_EQ(settings->budget_tokens, 32768u);
  EXPECT_EQ(settings->ttl_seconds, 600u);
}

TEST(HotKvSettingsTest, TakesWhatIsInRange) {
  Result<HotKvSettings> settings = Read({{"MESHNET_HOT_KV_MAX_SESSIONS", "256"},
                                         {"MESHNET_HOT_KV_CONTEXT_TOKENS", "1048576"},
                                         {"MESHNET_HOT_KV_BUDGET_TOKENS", "1048576"},
                                         {"MESHNET_HOT_KV_TTL_SECONDS", "31536000"}});
  ASSERT_TRUE(settings.ok()) << settings.status().message();
  EXPECT_EQ(settings->sessions_max, 256u);
  EXPECT_EQ(settings->context_tokens, 1048576u);
  EXPECT_EQ(settings->budget_tokens, 1048576u);
  EXPECT_EQ(settings->ttl_seconds, 31536000u);
}

TEST(HotKvSettingsTest, NamesTheVariableAndItsRange) {
  struct Row {
    const char* name;
    Environment environment;
    const char* variable;
    const char* range;
  } rows[] = {
      {"zero", {{"MESHNET_HOT_KV_MAX_SESSIONS", "0"}}, "MESHNET_HOT_KV_MAX_SESSIONS", "from 1 to 256"},
      {"too many", {{"MESHNET_HOT_KV_MAX_SESSIONS", "257"}}, "MESHNET_HOT_KV_MAX_SESSIONS", "from 1 to 256"},
      {"negative", {{"MESHNET_HOT_KV_CONTEXT_TOKENS", "-1"}}, "MESHNET_HOT_KV_CONTEXT_TOKENS", "from 1 to 1048576"},
      {"empty", {{"MESHNET_HOT_KV_TTL_SECONDS", ""}}, "MESHNET_HOT_KV_TTL_SECONDS", "from 1 to 31536000"},
      {"words", {{"MESHNET_HOT_KV_TTL_SECONDS", "ten"}}, "MESHNET_HOT_KV_TTL_SECONDS", "from 1 to 31536000"},
      {"unit", {{"MESHNET_HOT_KV_BUDGET_TOKENS", "32k"}}, "MESHNET_HOT_KV_BUDGET_TOKENS", "to 16777216"},
      {"blank", {{"MESHNET_HOT_KV_MAX_SESSIONS", " 8"}}, "MESHNET_HOT_KV_MAX_SESSIONS", "from 1 to 256"},
      {"plus", {{"MESHNET_HOT_KV_MAX_SESSIONS", "+8"}}, "MESHNET_HOT_KV_MAX_SESSIONS", "from 1 to 256"},
      {"hexadecimal", {{"MESHNET_HOT_KV_MAX_SESSIONS", "0x8"}}, "MESHNET_HOT_KV_MAX_SESSIONS", "from 1 to 256"},
      {"fraction", {{"MESHNET_HOT_KV_TTL_SECONDS", "0.5"}}, "MESHNET_HOT_KV_TTL_SECONDS", "from 1 to 31536000"},
      {"overflow", {{"MESHNET_HOT_KV_TTL_SECONDS", "18446744073709551617"}}, "MESHNET_HOT_KV_TTL_SECONDS", "from 1 to 31536000"},
      {"context above the default budget", {{"MESHNET_HOT_KV_CONTEXT_TOKENS", "65536"}}, "MESHNET_HOT_KV_CONTEXT_TOKENS", "from 1 to 32768"},
      {"budget below the default context", {{"MESHNET_HOT_KV_BUDGET_TOKENS", "1024"}}, "MESHNET_HOT_KV_BUDGET_TOKENS", "from 4096 to 16777216"},
      {"context above the budget",
       {{"MESHNET_HOT_KV_CONTEXT_TOKENS", "600"}, {"MESHNET_HOT_KV_BUDGET_TOKENS", "500"}}, "MESHNET_HOT_KV_BUDGET_TOKENS", "from 600 to 16777216"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    Result<HotKvSettings> settings = Read(row.environment);
    ASSERT_FALSE(settings.ok());
    EXPECT_EQ(settings.status().code(), StatusCode::kBadConfiguration);
    EXPECT_NE(settings.status().message().find(row.variable), std::string::npos) << settings.status().message();
    EXPECT_NE(settings.status().message().find(row.range), std::string::npos) << settings.status().message();
  }
}

}  // namespace
}  // namespace meshnet
