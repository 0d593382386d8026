#include "grammar/known_grammars.h"

#include <string>

#include "gtest/gtest.h"

namespace meshnet::grammar {
namespace {

TEST(KnownGrammarsTest, ReadsOnceWhatItTookAndForgetsTheOldest) {
  KnownGrammars known;
  int asked = 0;
  const auto check = [&](const std::string& text) {
    return known.Check(text, {}, 10, [&](std::string_view token) { ++asked; return token == "<a>"; }).ok();
  };
  EXPECT_TRUE(check("root ::= <a>"));
  EXPECT_TRUE(check("root ::= <a>"));
  EXPECT_EQ(asked, 1);
  EXPECT_FALSE(check("root ::= <b>"));
  EXPECT_FALSE(check("root ::= <b>")) << "only what was taken is known";
  EXPECT_EQ(asked, 3);
  for (int i = 0; i < 64; ++i) EXPECT_TRUE(check("root ::= \"" + std::to_string(i) + "\""));
  EXPECT_TRUE(check("root ::= <a>"));
  EXPECT_EQ(asked, 4);
}

}  // namespace
}  // namespace meshnet::grammar
