#include "cli/line_editing.h"

#include <gtest/gtest.h>

namespace meshnet::cli {
namespace {

// The line after these bytes were typed.
std::string Typed(const std::string& bytes) {
  KeyParser parser;
  LineBuffer line;
  for (char byte : bytes) {
    if (std::optional<Key> key = parser.Feed(static_cast<unsigned char>(byte))) line.Apply(*key);
  }
  return ToUtf8(line.text());
}

TEST(LineEditingTest, EditsAsReadlineDoes) {
  struct Row {
    const char* name;
    std::string bytes;
    std::string line;
  };
  for (const Row& row : {
           Row{"plain", "hello", "hello"},
           Row{"UTF-8 of two, three and four bytes", "\xc3\xbc\xe6\xbc\xa2\xf0\x9f\x98\x80", "\xc3\xbc\xe6\xbc\xa2\xf0\x9f\x98\x80"},
           Row{"backspace takes a whole character", "a\xe6\xbc\xa2\x7f", "a"},
           Row{"start of line", "bc\x01" "a", "abc"},
           Row{"end of line", "ab\x01\x05" "c", "abc"},
           Row{"arrows", "ac\x1b[Db", "abc"},
           Row{"arrows in application mode", "ac\x1bODb\x1bOC!", "abc!"},
           Row{"delete key", "abc\x01\x1b[3~", "bc"},
           Row{"home and end keys", "bc\x1b[Ha\x1b[Fd", "abcd"},
           Row{"kill to start", "abc def\x1b[D\x15", "f"},
           Row{"kill to end", "abc def\x01\x1b[C\x0b", "a"},
           Row{"kill word", "one two  \x17", "one "},
           Row{"word moves", "one two\x1b[1;5DX", "one Xtwo"},
           Row{"nothing left to delete", "\x7f\x1b[D\x15\x17\x1b[3~a", "a"},
           Row{"unknown sequence vanishes", "a\x1b[24~b\x1b[999;999Rc", "abc"},
           Row{"unknown control key vanishes", "a\x0f" "b", "ab"},
           Row{"paste keeps line breaks", "\x1b[200~one\rtwo\x03\x1b[201~", "one\ntwo"},
           Row{"a byte that is no UTF-8", "a\xff" "b", "a\xef\xbf\xbd" "b"},
           Row{"a cut character does not swallow the next", "\xe6\xbc" "a", "a"},
           Row{"tab is a blank", "a\tb", "a b"},
       }) {
    EXPECT_EQ(Typed(row.bytes), row.line) << row.name;
  }
}

TEST(LineEditingTest, KeysThatAreNotEditingAreTheCallers) {
  KeyParser parser;
  LineBuffer line;
  for (unsigned char byte : {0x03, 0x04, 0x0d, 0x0c, 0x10, 0x0e}) {
    std::optional<Key> key = parser.Feed(byte);
    ASSERT_TRUE(key.has_value());
    EXPECT_FALSE(line.Apply(*key)) << int{byte};
  }
}

TEST(LineEditingTest, AnEndlessEscapeSequenceIsDropped) {
  KeyParser parser;
  int keys = 0;
  for (char byte : std::string("\x1b[") + std::string(1000, '1')) keys += parser.Feed(static_cast<unsigned char>(byte)).has_value() ? 1 : 0;
  EXPECT_GT(keys, 900) << "after its bound the rest is text";
}

TEST(LineEditingTest, HistoryKeepsWhatIsBeingTyped) {
  LineHistory history;
  history.Add(U"one");
  history.Add(U"two");
  history.Add(U"two");
  EXPECT_EQ(history.Older(U"typing"), U"two");
  EXPECT_EQ(history.Older(U"ignored"), U"one");
  EXPECT_EQ(history.Older(U"ignored"), std::nullopt);
  EXPECT_EQ(history.Newer(), U"two");
  EXPECT_EQ(history.Newer(), U"typing");
  EXPECT_EQ(history.Newer(), std::nullopt);
}

TEST(LineEditingTest, HistoryIsBounded) {
  LineHistory history;
  for (size_t i = 0; i < LineHistory::kLinesMax + 10; ++i) history.Add(FromUtf8(std::to_string(i)));
  size_t count = 0;
  while (history.Older(U"")) ++count;
  EXPECT_EQ(count, LineHistory::kLinesMax);
}

TEST(LineEditingTest, Utf8GoesBothWays) {
  std::string text = "a\xc3\xbc\xe6\xbc\xa2\xf0\x9f\x98\x80";
  EXPECT_EQ(ToUtf8(FromUtf8(text)), text);
  EXPECT_EQ(FromUtf8("\xff\xe6\xbc"), U"\xfffd\xfffd");
}

}  // namespace
}  // namespace meshnet::cli
