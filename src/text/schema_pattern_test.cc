#include "text/schema_pattern.h"

#include <gtest/gtest.h>

#include <random>

// g++ 12 takes libstdc++'s regex for uninitialized when sanitizers are on.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <regex>

namespace meshnet::text {
namespace {

TEST(SchemaPatternTest, RefusesWhatHasNoGrammar) {
  const std::pair<const char*, const char*> cases[] = {
      {"^(?=a)b$", "lookaround"},  {"^(?<n>a)$", "named group"}, {"(a)\\1", "back reference"}, {"\\bword", "word boundary"},
      {"^\\p{L}+$", "property"},   {"a^b", "anchor"},            {"(^a|b)", "anchor"},         {"a$b", "anchor"},
      {"^(a$", "anchor"},          {"^(a", "close"},             {"^a)$", "did not open"},     {"^[a", "close a class"},
      {"^[z-a]$", "wrong range"},  {"*a", "repeats nothing"},    {"a**", "repeats a repetition"}, {"a{5,3}", "upper bound"},
      {"a{9999}", "more than 2000"}, {"^\"$", "escape"},         {"^\\n$", "escape"},          {"^\\\\$", "escape"},
      {"a{b", "starts no repetition"}, {"^\\x4$", "hex digits"}, {"a\\", "backslash"},
  };
  for (const auto& [pattern, fault] : cases) {
    const PatternRewrite rewrite = RewritePattern(pattern);
    EXPECT_FALSE(rewrite.ok) << pattern;
    EXPECT_NE(rewrite.fault.find(fault), std::string::npos) << pattern << ": " << rewrite.fault;
  }
  EXPECT_FALSE(RewritePattern(std::string(3000, 'a')).ok);
  EXPECT_FALSE(RewritePattern(std::string(100, '(') + "a" + std::string(100, ')')).ok);
}

// Reads a rewritten pattern, which is groups, classes of escapes and repetitions only, and makes a string that it matches.
class Maker {
 public:
  Maker(const std::string& pattern, std::mt19937& random) : text_(pattern), random_(random) {}
  std::string Make() {
    at_ = 1;  // behind ^
    return Sequence();
  }

 private:
  std::string Alternatives() {
    std::vector<std::string> all = {Sequence()};
    while (text_[at_] == '|') {
      ++at_;
      all.push_back(Sequence());
    }
    return all[random_() % all.size()];
  }
  std::string Sequence() {
    std::string made;
    while (text_[at_] != '|' && text_[at_] != ')' && text_[at_] != '$') {
      const size_t begin = at_;
      std::string item = Item();
      const size_t behind = at_;
      size_t min = 1, max = 1;
      if (text_[at_] == '*' || text_[at_] == '+' || text_[at_] == '?') {
        min = text_[at_] == '+' ? 1 : 0;
        max = text_[at_] == '?' ? 1 : 3;
        ++at_;
      } else if (text_[at_] == '{') {
        size_t used = 0;
        min = max = std::stoul(text_.substr(at_ + 1), &used);
        at_ += 1 + used;
        if (text_[at_] == ',') {
          ++at_;
          if (text_[at_] == '}') {
            max = min + 2;
          } else {
            max = std::stoul(text_.substr(at_), &used);
            at_ += used;
          }
        }
        ++at_;
      }
      const size_t end = at_;
      for (size_t i = min + random_() % (max - min + 1); i > 0; --i) {
        at_ = begin;
        made += Item();
      }
      (void)behind;
      at_ = end;
    }
    return made;
  }
  std::string Item() {
    if (text_[at_] == '(') {
      ++at_;
      std::string made = Alternatives();
      ++at_;
      return made;
    }
    ++at_;  // [
    std::vector<std::pair<uint32_t, uint32_t>> ranges;
    while (text_[at_] != ']') {
      const uint32_t first = Escape();
      uint32_t last = first;
      if (text_[at_] == '-') {
        ++at_;
        last = Escape();
      }
      ranges.emplace_back(first, last);
    }
    ++at_;
    // std::regex works on bytes: only ASCII can be compared.
    const auto [first, last] = ranges[0];
    return std::string(1, static_cast<char>(first + random_() % (std::min<uint32_t>(last, 0x7E) - first + 1)));
  }
  uint32_t Escape() {
    const size_t digits = text_[at_ + 1] == 'x' ? 2 : 8;
    const uint32_t code_point = static_cast<uint32_t>(std::stoul(text_.substr(at_ + 2, digits), nullptr, 16));
    at_ += 2 + digits;
    return code_point;
  }

  const std::string text_;
  std::mt19937& random_;
  size_t at_ = 0;
};

// Whatever the rewritten pattern produces matches the original as ECMAScript understands it, and needs no escape in JSON.
TEST(SchemaPatternTest, ProducesOnlyWhatTheOriginalMatches) {
  const char* patterns[] = {"^hello\\!$", "^\\d{3}-\\d{4}$", "abc", "^abc", "abc$", "^a|b$", "^[^a]$", "^.*$", "^.+@.+\\..+$", "^[ -~]{2,4}$", "^(ab|c)*d?$",
                            "^\\w+(\\s\\w+)*$", "^[A-Z][a-z]+?x{2,}$", "", "^$", "^(|a)$", "^[\\w.-]+$", "^(?:a(?:b(?:c)?)?)?$", "x|y|z", "^\\S\\D\\W$", "^a{0,3}$"};
  std::mt19937 random(11);
  for (const char* pattern : patterns) {
    const PatternRewrite rewrite = RewritePattern(pattern);
    ASSERT_TRUE(rewrite.ok) << pattern << ": " << rewrite.fault;
    const std::regex original(pattern, std::regex::ECMAScript);
    for (int round = 0; round < 200; ++round) {
      // One group around all: ^(…)$
      const std::string made = Maker(rewrite.pattern, random).Make();
      EXPECT_TRUE(std::regex_search(made, original)) << pattern << " does not match what was made of " << rewrite.pattern << ": " << made;
      EXPECT_EQ(made.find_first_of("\"\\\n"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace meshnet::text
