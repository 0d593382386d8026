#include "gateway/api_keys_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace meshnet::gateway {
namespace {

class ApiKeysTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& content) {
    const std::string path = ::testing::TempDir() + "/api_keys_" + ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::ofstream(path) << content;
    return path;
  }
};

TEST_F(ApiKeysTest, FindsNamedAndNamelessKeys) {
  auto keys = ApiKeys::Load(Write("# team\nalice:sk-1\n\n  bob : sk-2 \r\nplain-key\nalice:sk:with:colons"));
  ASSERT_TRUE(keys.ok()) << keys.status().message();
  EXPECT_TRUE(keys->required());
  EXPECT_EQ(keys->NameOf("sk-1"), "alice");
  EXPECT_EQ(keys->NameOf("sk-2"), "bob");
  EXPECT_EQ(keys->NameOf("plain-key"), "key-5");
  EXPECT_EQ(keys->NameOf("sk:with:colons"), "alice");
  for (const char* wrong : {"", "sk-", "sk-11", "alice", "alice:sk-1", "SK-1"}) EXPECT_EQ(keys->NameOf(wrong), std::nullopt) << wrong;
}

TEST_F(ApiKeysTest, RefusesFilesThatWouldLockOutOrLeak) {
  for (const char* content : {"", "\n# only a comment\n", "name:\n", "a name with blanks:key\n", ":key\n"}) {
    auto keys = ApiKeys::Load(Write(content));
    ASSERT_FALSE(keys.ok()) << content;
    EXPECT_EQ(keys.status().code(), StatusCode::kBadConfiguration);
  }
  auto missing = ApiKeys::Load(::testing::TempDir() + "/no/such/file");
  ASSERT_FALSE(missing.ok());
  EXPECT_NE(missing.status().message().find("no/such/file"), std::string::npos);
  // The message names the line but never shows the key.
  auto bad = ApiKeys::Load(Write("good:key\nb@d:secret\n"));
  ASSERT_FALSE(bad.ok());
  EXPECT_NE(bad.status().message().find("line 2"), std::string::npos);
  EXPECT_EQ(bad.status().message().find("secret"), std::string::npos);
}

TEST_F(ApiKeysTest, WithoutAFileNobodyNeedsAKey) { EXPECT_FALSE(ApiKeys().required()); }

}  // namespace
}  // namespace meshnet::gateway
