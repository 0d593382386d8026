#include "grammar/bounds.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace meshnet::grammar {
namespace {

using testing::HasSubstr;

std::string Repeated(const std::string& text, size_t times) {
  std::string result;
  for (size_t i = 0; i < times; ++i) result += text;
  return result;
}

Status Check(const std::string& grammar) {
  return CheckGrammar(grammar, Bounds(), 100, [](std::string_view text) { return text == "<think>"; });
}

struct Case {
  std::string name;
  std::string grammar;
  std::string reason;  // part of the refusal; empty: taken
};

// r0 ::= r1, r1 ::= r2, ...: every rule begins with the next.
std::string Chain(size_t length, const std::string& alternative_separator) {
  std::string text = "root ::= r0\n";
  for (size_t i = 0; i < length; ++i) {
    const std::string next = "r" + std::to_string(i + 1);
    text += "r" + std::to_string(i) + " ::= " + next + (alternative_separator.empty() ? "" : alternative_separator + next) + "\n";
  }
  return text + "r" + std::to_string(length) + " ::= \"x\"\n";
}

TEST(BoundsTest, TakesOrRefusesByName) {
  const std::string json = R"(root ::= object
value ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
)";
  std::string many_strings = "root ::= \"s0\"";
  for (int i = 1; i < 1500; ++i) many_strings += " | \"s" + std::to_string(i) + "\"";
  const std::vector<Case> cases = {
      {"literal", "root ::= \"yes\" | \"no\"", ""},
      {"empty literal", "root ::= \"\" \"a\"", ""},
      {"repetition to nothing", "root ::= \"a\"{0} \"b\"", ""},
      {"json", json, ""},
      {"comment and token", "# c\nroot ::= <think> [^<]* <[7]> !<[8]> .", ""},
      {"nested repetition within bounds", "root ::= (\"a\"{1,40} \"b\"){1,40}", ""},
      {"enumeration of 1500 strings", many_strings, ""},
      {"escapes", R"(root ::= "\n\t\r\\\"\x41\u00e4\U0001F600" [\]\-a-z])", ""},
      {"new line inside a group", "root ::= (\"a\" |\n (\"b\"){\n2 })\n", ""},
      {"right recursion", "root ::= \"a\" root | \"b\"", ""},
      {"repetition of what may be nothing", "root ::= (call? space)+\ncall ::= \"<call>\" space\nspace ::= | \" \" | \"\\n\"{1,2}", ""},
      {"star of a rule that may be nothing", "root ::= ws* \"a\"\nws ::= [ ]*", ""},
      {"empty", "", "no rule \"root\""},
      {"no root", "start ::= \"a\"", "no rule \"root\""},
      {"undefined rule", "root ::= missing", "not defined"},
      {"sixty thousand parentheses", "root ::= " + Repeated("(", 60000), "nest deeper than 128"},
      {"sixty thousand closed parentheses", "root ::= " + Repeated("(", 60000) + "\"a\"" + Repeated(")", 60000), "nest deeper than 128"},
      {"too long", "root ::= \"" + Repeated("a", 300000) + "\"", "bytes; at most 262144"},
      {"many repetitions", "root ::= \"a\"{100000}", "repeated more than 2000"},
      {"huge number", "root ::= \"a\"{99999999999999999999999999}", "too large"},
      {"bound that llama.cpp would drop", "root ::= \"a\"{0,2001}", "repeated more than 2000"},
      {"falling repetition", "root ::= \"a\"{5,3}", "maximum is below its minimum"},
      {"nested exact repetitions", "root ::= ((\"a\"{100}){100}){100}", ""},
      {"nested repetitions", "root ::= ((\"a\"{0,100}){0,100}){0,100}", "multiply to more than 2000"},
      {"repeated repetitions", "root ::= \"a\"{100}{100}", "multiply to more than 2000"},
      {"long literals written out", "root ::= \"" + Repeated("a", 1000) + "\"{2000}", "elements"},
      {"optional groups written out", "root ::= " + Repeated("\"a\"{0,2000} ", 50), "rules"},
      {"long rule name", Repeated("n", 5000) + " ::= \"a\"\nroot ::= \"a\"", "longer than 512"},
      {"left recursion", "root ::= root \"a\" | \"b\"", "left recursion"},
      {"hidden left recursion", "root ::= a\na ::= x a \"z\"\nx ::= y\ny ::= \"q\" |", "left recursion"},
      {"left recursion far from root", "root ::= \"a\"\nb ::= c\nc ::= b", "left recursion"},
      {"rule that never begins", "root ::= b root\nb ::= y\ny ::= \"\"", "never comes to a character"},
      {"rule that never ends", "root ::= \"{\" root \"}\"", ""},
      {"long chain", Chain(5000, ""), "begin with each other"},
      {"doubling chain", Chain(40, " | "), "too many ways"},
      {"doubling readings at the start", Chain(14, " \"a\" | "), "too ambiguous"},
      {"doubling readings with text", "root ::= s\ns ::= \"a\" s \"b\" | \"a\" s \"c\" | \"a\"", "too ambiguous"},
      {"doubling readings over two characters", "root ::= s\ns ::= \"ab\" s \"b\" | \"a\" \"b\" s \"c\" | \"x\"", "too ambiguous"},
      {"optional items that overlap", "root ::= (\"a\"? \"a\"? \"a\"?){1,400}", ""},
      {"unclosed group", "root ::= (\"a\"", "\")\" is expected"},
      {"unclosed literal", "root ::= \"a", "ends inside a literal"},
      {"unclosed class", "root ::= [a-", "ends inside a literal"},
      {"unclosed repetition", "root ::= \"a\"{2", "is expected"},
      {"repetition of nothing", "root ::= *", "nothing to repeat"},
      {"empty class", "root ::= []", "class is empty"},
      {"empty negated class", "root ::= [^]", "class is empty"},
      {"unknown escape", "root ::= \"\\q\"", "unknown escape"},
      {"half escape", "root ::= \"\\u12\"", "hexadecimal"},
      {"backslash at the end", "root ::= \"\\", "unknown escape"},
      {"unknown token", "root ::= <unknown>", "not one token"},
      {"huge token", "root ::= <[99999999999]>", "too large"},
      {"token out of range", "root ::= <[100]>", "the vocabulary has 100"},
      {"long token text", "root ::= <" + Repeated("a", 300) + ">", "longer than 256 bytes"},
      {"fault in the third line", "root ::= a\na ::= \"x\"\nb ::= [", "in line 3"},
      {"not UTF-8", "root ::= \"\xe0\"\"", "not UTF-8"},
      {"zero byte", std::string("root ::= \"a\"\0b", 13), "not UTF-8"},
      {"llguidance", "%llguidance {}\nstart: /a/", "llguidance"},
      {"text behind", "root ::= \"a\" )", "new line is expected"},
  };
  for (const Case& row : cases) {
    const Status status = Check(row.grammar);
    if (row.reason.empty()) {
      EXPECT_TRUE(status.ok()) << row.name << ": " << status.message();
    } else {
      EXPECT_FALSE(status.ok()) << row.name;
      EXPECT_EQ(status.code(), StatusCode::kRefused) << row.name;
      EXPECT_THAT(status.message(), HasSubstr(row.reason)) << row.name;
      EXPECT_LT(status.message().size(), 160u) << row.name << ": the grammar itself may not be quoted";
    }
  }
}

// On the wire nobody knows the vocabulary's texts: any passes, and the tail asks again.
TEST(BoundsTest, WithoutAVocabularyOnlyNumbersAreCounted) {
  EXPECT_TRUE(CheckGrammar("root ::= <no such token> <[99]>", Bounds(), 100, nullptr).ok());
  EXPECT_FALSE(CheckGrammar("root ::= <[100]>", Bounds(), 100, nullptr).ok());
}

}  // namespace
}  // namespace meshnet::grammar
