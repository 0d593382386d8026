#include "text/nesting_guard.h"

#include <gtest/gtest.h>

#include <string>

namespace meshnet::text {
namespace {

std::string Repeat(const std::string& piece, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) text += piece;
  return text;
}

TEST(NestingGuardTest, SeesDepthWhateverTheStringsSay) {
  EXPECT_TRUE(NestingGuard(10).Add(Repeat("[", 10)));
  EXPECT_FALSE(NestingGuard(10).Add(Repeat("[", 11)));
  EXPECT_TRUE(NestingGuard(10).Add(Repeat("[]", 1000)));
  EXPECT_TRUE(NestingGuard(10).Add("{\"a\":\"" + Repeat("x", 50) + "\"}"));
  // Closing brackets inside strings do not hide the depth, and a stray quote in front of the JSON does not either.
  EXPECT_FALSE(NestingGuard(10).Add(Repeat("[\"]\",", 11)));
  EXPECT_FALSE(NestingGuard(10).Add("5\" disk " + Repeat("[\"]\",", 11)));
  EXPECT_FALSE(NestingGuard(10).Add(Repeat("[\"\\\"]\",", 11)));
  NestingGuard pieces(3);
  EXPECT_TRUE(pieces.Add("{\"a"));
  EXPECT_TRUE(pieces.Add("\":["));
  EXPECT_TRUE(pieces.Add("["));
  EXPECT_FALSE(pieces.Add("["));
  EXPECT_FALSE(pieces.Add("]"));
}

}  // namespace
}  // namespace meshnet::text
