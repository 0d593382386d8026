#include "text/bounded_json.h"

#include <gtest/gtest.h>

namespace meshnet::text {
namespace {

std::string Repeat(const std::string& piece, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) text += piece;
  return text;
}

struct Case {
  std::string name;
  std::string body;
  std::string message;  // part of it
  std::string param;
  int status = 400;
};

TEST(BoundedJsonTest, RefusesWithTheReason) {
  std::string many_keys = "{\"a\":0";
  for (int i = 0; i < 8000; ++i) many_keys += ",\"k" + std::to_string(i) + "\":0";
  const Case cases[] = {
      {"empty", "", "not valid JSON", ""},
      {"cut off", "{\"a\":", "not valid JSON", ""},
      {"NaN", "{\"a\":NaN}", "not valid JSON", ""},
      {"infinity", "{\"temperature\":1e999}", "too large", "temperature"},
      {"negative infinity", "{\"x\":-Infinity}", "not valid JSON", ""},
      {"comment", "{\"a\":1 /* b */}", "not valid JSON", ""},
      {"rest", "{} {}", "not valid JSON", ""},
      {"invalid UTF-8", "{\"a\":\"\xFF\"}", "byte", ""},
      {"lone surrogate", "{\"a\":\"\\ud800\"}", "not valid JSON", ""},
      {"raw control character", "{\"a\":\"\x01\"}", "not valid JSON", ""},
      {"array", "[1]", "must be a JSON object", ""},
      {"number", "1", "must be a JSON object", ""},
      {"key twice", "{\"stream\":true,\"stream\":false}", "comes twice", "stream"},
      {"key twice inside", "{\"a\":[{\"b\":1,\"c\":2,\"b\":3}]}", "comes twice", "b"},
      {"60,000 arrays", "{\"a\":" + Repeat("[", 60000), "deeper than 128", "a"},
      {"deep objects", Repeat("{\"a\":", 60000) + "1" + Repeat("}", 60000), "deeper than 128", "a"},
      {"many keys", many_keys + "}", "too many keys", ""},
      {"many values", "{\"a\":[" + Repeat("0,", 2u << 20) + "0]}", "values", ""},
      {"large", "{\"a\":\"" + Repeat("0123456789abcdef", (32u << 20) / 16) + "\"}", "bytes", "", 413},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    auto parsed = ParseObject(c.body, {});
    ASSERT_TRUE(std::holds_alternative<ApiError>(parsed));
    const ApiError& error = std::get<ApiError>(parsed);
    EXPECT_NE(error.message.find(c.message), std::string::npos) << error.message;
    EXPECT_EQ(error.param, c.param);
    EXPECT_EQ(error.status, c.status);
    EXPECT_NO_THROW(error.ToJson().dump());
  }
}

TEST(BoundedJsonTest, TakesWhatIsWithinTheBounds) {
  auto parsed = ParseObject("{\"a\":" + Repeat("[", 127) + Repeat("]", 127) + ",\"\\u0000\":\"\\ud83d\\ude00\"}", {});
  ASSERT_TRUE(std::holds_alternative<nlohmann::ordered_json>(parsed));
  EXPECT_EQ(std::get<nlohmann::ordered_json>(parsed)[std::string(1, '\0')], "\xF0\x9F\x98\x80");
  EXPECT_FALSE(JsonFault("[1,{\"a\":2}]", {}).has_value());
  EXPECT_TRUE(JsonFault("[1,{\"a\":2}", {}).has_value());
}

// An error never repeats what the client sent, beyond a key.
TEST(BoundedJsonTest, KeepsTheBodyOutOfTheMessage) {
  auto parsed = ParseObject("{\"content\":\"my secret\", oops", {});
  EXPECT_EQ(std::get<ApiError>(parsed).message.find("secret"), std::string::npos);
  EXPECT_EQ(std::get<ApiError>(parsed).message.find("oops"), std::string::npos);
}

}  // namespace
}  // namespace meshnet::text
