#include "text/visible_text.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

namespace meshnet::text {
namespace {

struct Case {
  std::string name;
  std::vector<std::string> stops;
  std::vector<std::string> tokens;
  std::vector<std::string> shown;  // after each token, then after Flush
  bool stopped = false;
};

TEST(VisibleTextTest, ShowsWhatIsSafe) {
  const Case cases[] = {
      {"plain", {}, {"Hel", "lo"}, {"Hel", "lo", ""}},
      {"emoji in four byte tokens", {}, {"a\xF0", "\x9F", "\x98", "\x80!"}, {"a", "", "", "\xF0\x9F\x98\x80!", ""}},
      {"unfinished character at the end is dropped", {}, {"a\xF0\x9F"}, {"a", ""}},
      {"lone continuation becomes U+FFFD", {}, {"a\x80", "b"}, {"a\xEF\xBF\xBD", "b", ""}},
      {"broken beginning becomes U+FFFD once", {}, {"\xF0\x9F", "x"}, {"", "\xEF\xBF\xBDx", ""}},
      {"no surrogates", {}, {"\xED\xA0\x80"}, {"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD", ""}},
      {"stop over three tokens", {"END"}, {"xE", "N", "Dy"}, {"x", "", "", ""}, true},
      {"what looked like a stop", {"END"}, {"xE", "N", "E", "z"}, {"x", "", "EN", "Ez", ""}},
      {"held back text comes at the end", {"END"}, {"xEN"}, {"x", "EN"}},
      {"stop inside one token", {"lo w"}, {"Hello world"}, {"Hel", ""}, true},
      {"first complete stop wins", {"abcd", "bc"}, {"abcd"}, {"a", ""}, true},
      {"of two that end together the longest", {"bc", "abc"}, {"xabc"}, {"x", ""}, true},
      {"stop after an unfinished character", {"E"}, {"a\xF0\x9F", "E"}, {"a", "", ""}, true},
      {"stop of several bytes a character", {"\xF0\x9F\x98\x80"}, {"a\xF0\x9F\x98", "\x80"}, {"a", "", ""}, true},
      {"empty stop strings do nothing", {""}, {"ab"}, {"ab", ""}},
      {"overlapping beginning", {"aab"}, {"aa", "a", "b"}, {"", "a", "", ""}, true},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    VisibleText visible(c.stops);
    for (size_t i = 0; i < c.tokens.size(); ++i) EXPECT_EQ(visible.Add(c.tokens[i]), c.shown[i]) << i;
    EXPECT_EQ(visible.Flush(), c.shown.back());
    EXPECT_EQ(visible.stopped(), c.stopped);
  }
}

// The text depends on the bytes alone: any cut into tokens shows the same, always whole UTF-8, never a stop string.
TEST(VisibleTextTest, CutsIntoTokensDoNotMatter) {
  std::mt19937 random(7);
  const std::string alphabet[] = {"a", "b", "ab", "\xC3\xA4", "\xF0\x9F\x98\x80", "\xF0", "\x9F", "\x80", "E", "N", "D", "END"};
  for (int round = 0; round < 3000; ++round) {
    std::string bytes;
    for (unsigned i = random() % 12; i > 0; --i) bytes += alphabet[random() % std::size(alphabet)];
    std::vector<std::string> stops;
    for (unsigned i = random() % 3; i > 0; --i) stops.push_back(alphabet[random() % 5] + alphabet[8 + random() % 4]);
    std::string whole;
    size_t released = 0;
    for (int cut = 0; cut < 4; ++cut) {
      VisibleText visible(stops);
      std::string text;
      for (size_t at = 0; at < bytes.size() && !visible.stopped();) {
        const size_t length = cut == 0 ? bytes.size() : 1 + random() % 3;
        text += visible.Add(std::string_view(bytes).substr(at, length));
        at += length;
      }
      text += visible.Flush();
      ASSERT_NO_THROW(nlohmann::json(text).dump()) << "not UTF-8";
      for (const std::string& stop : stops) ASSERT_EQ(text.find(stop), std::string::npos);
      if (cut == 0) {
        whole = text;
        released = visible.released_bytes();
      }
      ASSERT_EQ(text, whole) << nlohmann::json::binary({bytes.begin(), bytes.end()}).dump();
      ASSERT_EQ(visible.released_bytes(), released);
    }
  }
}

}  // namespace
}  // namespace meshnet::text
