#include "grammar/text_run.h"

#include <string>

#include "gtest/gtest.h"

namespace meshnet::grammar {
namespace {

TEST(TextRunTest, CountsWhatOneRepetitionMayMatch) {
  EXPECT_EQ(LongestRun(""), 0u);
  EXPECT_EQ(LongestRun("abc"), 3u);
  EXPECT_EQ(LongestRun(std::string(5000, ' ')), 5000u);
  EXPECT_EQ(LongestRun("ab cd"), 5u) << "words with blanks in between";
  EXPECT_EQ(LongestRun("ab\ncd, efg"), 4u);
  EXPECT_EQ(LongestRun("77777"), 5u) << "digits";
  EXPECT_EQ(LongestRun("\u6f22\u6f22\u3000\u6f22"), 4u) << "characters, not bytes";
  EXPECT_GT(LongestRun("\xff\xe6"), 0u) << "whatever it is, it ends";
}

}  // namespace
}  // namespace meshnet::grammar
