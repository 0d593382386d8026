#include "text/grammar_bounds.h"

#include <gtest/gtest.h>

namespace meshnet::text {
namespace {

std::string Repeat(const std::string& piece, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) text += piece;
  return text;
}

// r0 begins with r1 begins with r2 …
std::string Chain(size_t length, const std::string& alternatives) {
  std::string text = "root ::= r0\n";
  for (size_t i = 0; i < length; ++i) {
    text += "r" + std::to_string(i) + " ::= r" + std::to_string(i + 1);
    if (!alternatives.empty()) text += alternatives + "r" + std::to_string(i + 1);
    text += "\n";
  }
  return text + "r" + std::to_string(length) + " ::= \"x\"\n";
}

struct Case {
  std::string name;
  std::string grammar;
  std::string fault;  // part of it; empty: none
};

TEST(GrammarBoundsTest, TakesOrRefuses) {
  const Case cases[] = {
      {"literal", "root ::= \"yes\" | \"no\"", ""},
      {"rules, comments, groups", "# c\nroot ::= (a | \"(\")* b?\na ::= [a-z0-9_]+ # d\nb ::= [^\"\\\\]{2,5} .\n", ""},
      {"escapes", "root ::= \"\\n\\t\\\"\\x41\\u00e4\\U0001F600\" [\\]\\-a]", ""},
      {"new line inside a group", "root ::= (\n \"a\" |\n \"b\"\n)\n", ""},
      {"what may be nothing, repeated", "root ::= (call? space)+\ncall ::= \"x\"\nspace ::= | \" \"", ""},
      {"tokens by number", "root ::= <[5]> !<[6]>", ""},
      {"empty literal", "root ::= \"\" \"a\"", ""},
      {"repetition to nothing", "root ::= \"a\"{0} \"b\"", ""},
      {"right recursion", "root ::= \"a\" root | \"a\"", ""},
      {"empty grammar", "", "no rule named \"root\""},
      {"no root", "start ::= \"a\"", "no rule named \"root\""},
      {"undefined", "root ::= a", "does not define"},
      {"no definition", "root \"a\"", "misses ::="},
      {"open literal", "root ::= \"a", "ends inside"},
      {"open class", "root ::= [a", "ends inside"},
      {"empty class", "root ::= []", "empty character class"},
      {"open group", "root ::= (\"a\"", "close a parenthesis"},
      {"too many closed", "root ::= \"a\")", "unexpected character"},
      {"unknown escape", "root ::= \"\\q\"", "unknown escape"},
      {"short escape", "root ::= \"\\x4\"", "hex digits"},
      {"nothing repeated", "root ::= *", "repeats nothing"},
      {"falling repetition", "root ::= \"a\"{5,3}", "upper bound is below"},
      {"large repetition", "root ::= \"a\"{2001}", "more than 2000 times"},
      {"dropped bound", "root ::= \"a\"{0,2001}", "more than 2000 times"},
      {"multiplied repetition", "root ::= (\"a\"{1,1000}){1,1000}", "too large an item"},
      {"huge number", "root ::= \"a\"{99999999999999999999}", "too large"},
      {"token out of range", "root ::= <[100]>", "does not have"},
      {"open token", "root ::= <abc", "close a token"},
      {"60,000 parentheses", "root ::= " + Repeat("(", 60000), "more than 128 parentheses"},
      {"large", "root ::= \"" + Repeat("a", 300000) + "\"", "bytes"},
      {"NUL", std::string("root ::= \"a") + '\0' + "\"", "NUL"},
      {"left recursion", "root ::= root \"a\" | \"b\"", "left recursive in the rule \"root\""},
      {"left recursion behind nothing", "root ::= a root \"x\" | \"y\"\na ::= b\nb ::= \"q\" |", "left recursive"},
      {"long chain", Chain(5000, ""), "begin with each other"},
      {"doubling search", Chain(40, " | "), "too ambiguous"},
      {"doubling stacks", Chain(30, " \"a\" | "), "too ambiguous"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const GrammarReport report = CheckGrammar(c.grammar, 100, {});
    if (c.fault.empty()) {
      EXPECT_FALSE(report.fault.has_value()) << *report.fault;
    } else {
      ASSERT_TRUE(report.fault.has_value());
      EXPECT_NE(report.fault->find(c.fault), std::string::npos) << *report.fault;
    }
  }
}

TEST(GrammarBoundsTest, ListsTokensByText) {
  EXPECT_EQ(CheckGrammar("root ::= <think> [^<]* !</think>", 100, {}).token_texts, (std::vector<std::string>{"<think>", "</think>"}));
}

}  // namespace
}  // namespace meshnet::text
