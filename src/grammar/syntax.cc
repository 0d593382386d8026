#include "grammar/syntax.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>

#include "grammar/utf8.h"

namespace meshnet::grammar {
namespace {

using Kind = Element::Kind;
using Rule = std::vector<Element>;

constexpr uint64_t kNoMaximum = UINT64_MAX;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsWord(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || IsDigit(c); }

// Recursive descent as in llama.cpp's llama_grammar_parser, with every growth counted. A method that fails sets `error_` and returns false;
// the first error stays.
class Reader {
 public:
  Reader(std::string_view text, const Limits& limits, uint32_t vocabulary_size, const IsToken& is_token)
      : text_(text), limits_(limits), vocabulary_size_(vocabulary_size), is_token_(is_token) {}

  Result<Rules> Read() {
    SkipSpace(true);
    while (!AtEnd()) {
      if (!ReadRule()) return Refused("the grammar cannot be used: " + error_);
    }
    return Finish();
  }

 private:
  struct Repeat {
    uint64_t least = 0;
    uint64_t most = kNoMaximum;
  };

  bool AtEnd() const { return at_ >= text_.size(); }
  char Peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  bool Fail(const std::string& what) {
    if (!error_.empty()) return false;
    const std::string_view before = text_.substr(0, at_);
    error_ = what + " in line " + std::to_string(1 + std::count(before.begin(), before.end(), '\n'));
    return false;
  }

  void SkipSpace(bool newline_ok) {
    while (!AtEnd()) {
      const char c = Peek();
      if (c == '#') {
        while (!AtEnd() && Peek() != '\r' && Peek() != '\n') ++at_;
      } else if (c == ' ' || c == '\t' || (newline_ok && (c == '\r' || c == '\n'))) {
        ++at_;
      } else {
        return;
      }
    }
  }

  bool ReadName(std::string_view& name) {
    const size_t begin = at_;
    while (IsWord(Peek())) ++at_;
    name = text_.substr(begin, at_ - begin);
    if (name.empty()) return Fail("a rule name is expected");
    if (name.size() > limits_.name_bytes_max) return Fail("a rule name is longer than " + std::to_string(limits_.name_bytes_max) + " bytes");
    return true;
  }

  // Of a rule that has a name; defined or only referred to so far.
  uint32_t RuleOf(std::string_view name) {
    const auto [entry, added] = named_.emplace(std::string(name), static_cast<uint32_t>(rules_.size()));
    if (added) rules_.emplace_back();
    return entry->second;
  }

  bool AddRule(uint32_t& id) {
    if (rules_.size() >= limits_.rules_max) return Fail("it needs more than " + std::to_string(limits_.rules_max) + " rules");
    id = static_cast<uint32_t>(rules_.size());
    rules_.emplace_back();
    return true;
  }

  bool Count(size_t elements) {
    elements_ += elements;
    if (elements_ <= limits_.elements_max) return true;
    return Fail("written out it has more than " + std::to_string(limits_.elements_max) + " elements");
  }

  bool Push(Rule& rule, Kind kind, uint32_t value) {
    rule.push_back({kind, value});
    return Count(1);
  }

  bool ReadRule() {
    std::string_view name;
    if (!ReadName(name)) return false;
    if (rules_.size() >= limits_.rules_max) return Fail("it needs more than " + std::to_string(limits_.rules_max) + " rules");
    const uint32_t id = RuleOf(name);
    SkipSpace(false);
    if (text_.substr(at_, 3) != "::=") return Fail("\"::=\" is expected");
    at_ += 3;
    SkipSpace(true);
    if (!ReadAlternatives(id, 0)) return false;
    if (Peek() == '\r') {
      at_ += Peek(1) == '\n' ? 2 : 1;
    } else if (Peek() == '\n') {
      ++at_;
    } else if (!AtEnd()) {
      return Fail("a new line is expected");
    }
    SkipSpace(true);
    return true;
  }

  bool ReadAlternatives(uint32_t id, uint32_t nesting) {
    Rule rule;
    if (!ReadSequence(rule, nesting)) return false;
    while (Peek() == '|') {
      if (!Push(rule, Kind::kAlternative, 0)) return false;
      ++at_;
      SkipSpace(true);
      if (!ReadSequence(rule, nesting)) return false;
    }
    if (!Push(rule, Kind::kEnd, 0)) return false;
    rules_[id] = std::move(rule);
    return true;
  }

  bool ReadSequence(Rule& rule, uint32_t nesting) {
    size_t last = rule.size();      // where the item that a repetition repeats begins
    uint64_t rules_of_last = 1;     // llama.cpp multiplies these to bound nested repetitions
    while (!AtEnd()) {
      const char c = Peek();
      if (c == '*' || c == '+' || c == '?' || c == '{') {
        Repeat repeat;
        if (!ReadRepeat(repeat, nesting > 0)) return false;
        SkipSpace(nesting > 0);
        if (!Apply(repeat, rule, last, rules_of_last)) return false;
        continue;
      }
      const size_t begin = rule.size();
      const size_t rules_before = rules_.size();
      if (c == '"') {
        if (!ReadLiteral(rule)) return false;
      } else if (c == '[') {
        if (!ReadClass(rule)) return false;
      } else if (c == '<' || c == '!') {
        if (!ReadToken(rule)) return false;
      } else if (IsWord(c)) {
        std::string_view name;
        if (!ReadName(name) || !Push(rule, Kind::kRule, RuleOf(name))) return false;
      } else if (c == '(') {
        if (!ReadGroup(rule, nesting)) return false;
      } else if (c == '.') {
        ++at_;
        if (!Push(rule, Kind::kAny, 0)) return false;
      } else {
        return true;
      }
      last = begin;
      rules_of_last = c == '(' ? std::max<uint64_t>(1, rules_.size() - rules_before) : 1;
      SkipSpace(nesting > 0);
    }
    return true;
  }

  bool ReadGroup(Rule& rule, uint32_t nesting) {
    if (nesting >= limits_.nesting_max) return Fail("its groups nest deeper than " + std::to_string(limits_.nesting_max));
    ++at_;
    SkipSpace(true);
    uint32_t id = 0;
    if (!AddRule(id) || !ReadAlternatives(id, nesting + 1)) return false;
    if (!Push(rule, Kind::kRule, id)) return false;
    if (Peek() != ')') return Fail("\")\" is expected");
    ++at_;
    return true;
  }

  bool ReadHex(int digits, uint32_t& value) {
    value = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
      const char c = Peek();
      const int digit = IsDigit(c) ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
      if (digit < 0) return Fail(std::to_string(digits) + " hexadecimal digits are expected");
      value = value << 4 | static_cast<uint32_t>(digit);
    }
    return true;
  }

  bool ReadCharacter(uint32_t& value) {
    if (AtEnd()) return Fail("it ends inside a literal");
    if (Peek() != '\\') {
      value = TakeCodePoint(text_, at_);
      return true;
    }
    const char escape = Peek(1);
    at_ += 2;
    switch (escape) {
      case 'x': return ReadHex(2, value);
      case 'u': return ReadHex(4, value);
      case 'U': return ReadHex(8, value);
      case 't': value = '\t'; return true;
      case 'r': value = '\r'; return true;
      case 'n': value = '\n'; return true;
      case '\\': case '"': case '[': case ']': case '-': value = static_cast<unsigned char>(escape); return true;
      default: at_ -= 2; return Fail("an unknown escape stands");
    }
  }

  bool ReadLiteral(Rule& rule) {
    ++at_;
    while (Peek() != '"') {
      uint32_t value = 0;
      if (!ReadCharacter(value) || !Push(rule, Kind::kCharacter, value)) return false;
    }
    ++at_;
    return true;
  }

  bool ReadClass(Rule& rule) {
    ++at_;
    const bool negated = Peek() == '^';
    if (negated) ++at_;
    const size_t begin = rule.size();
    while (Peek() != ']') {
      uint32_t value = 0;
      if (!ReadCharacter(value)) return false;
      const Kind kind = rule.size() > begin ? Kind::kCharacterMore : negated ? Kind::kCharacterNot : Kind::kCharacter;
      if (!Push(rule, kind, value)) return false;
      if (Peek() == '-' && Peek(1) != ']') {
        ++at_;
        if (!ReadCharacter(value) || !Push(rule, Kind::kRangeEnd, value)) return false;
      }
    }
    ++at_;
    // llama.cpp would take it for nothing, which constrains nothing.
    if (rule.size() == begin) return Fail("a character class is empty");
    return true;
  }

  bool ReadToken(Rule& rule) {
    Kind kind = Kind::kToken;
    if (Peek() == '!') {
      kind = Kind::kTokenNot;
      ++at_;
    }
    if (Peek() != '<') return Fail("\"<\" is expected");
    const size_t begin = at_;
    if (Peek(1) == '[') {
      at_ += 2;
      uint64_t id = 0;
      if (!ReadInteger(id)) return false;
      if (id >= vocabulary_size_) return Fail("a token number is too large: the vocabulary has " + std::to_string(vocabulary_size_));
      if (text_.substr(at_, 2) != "]>") return Fail("\"]>\" is expected");
      at_ += 2;
      return Push(rule, kind, static_cast<uint32_t>(id));
    }
    const size_t end = text_.find('>', at_);
    if (end == std::string_view::npos) return Fail("\">\" is expected");
    const std::string_view token = text_.substr(begin, end + 1 - begin);
    if (token.size() > limits_.token_bytes_max) return Fail("a token's text is longer than " + std::to_string(limits_.token_bytes_max) + " bytes");
    if (is_token_ && !is_token_(token)) return Fail("what stands between \"<\" and \">\" is not one token of the vocabulary");
    at_ = end + 1;
    return Push(rule, kind, 0);
  }

  bool ReadInteger(uint64_t& value) {
    if (!IsDigit(Peek())) return Fail("a number is expected");
    value = 0;
    while (IsDigit(Peek())) {
      if (value > 1'000'000'000'000) return Fail("a number is too large");
      value = value * 10 + static_cast<uint64_t>(Peek() - '0');
      ++at_;
    }
    return true;
  }

  bool ReadRepeat(Repeat& repeat, bool newline_ok) {
    const char c = Peek();
    ++at_;
    if (c != '{') {
      repeat.least = c == '+' ? 1 : 0;
      repeat.most = c == '?' ? 1 : kNoMaximum;
      return true;
    }
    SkipSpace(newline_ok);
    if (!ReadInteger(repeat.least)) return false;
    SkipSpace(newline_ok);
    if (Peek() == '}') {
      repeat.most = repeat.least;
    } else if (Peek() == ',') {
      ++at_;
      SkipSpace(newline_ok);
      if (IsDigit(Peek()) && !ReadInteger(repeat.most)) return false;
      SkipSpace(newline_ok);
      if (Peek() != '}') return Fail("\"}\" is expected");
    } else {
      return Fail("\",\" or \"}\" is expected");
    }
    ++at_;
    const uint64_t larger = repeat.most == kNoMaximum ? repeat.least : std::max(repeat.least, repeat.most);
    if (larger > limits_.repetitions_max) return Fail("an item is repeated more than " + std::to_string(limits_.repetitions_max) + " times");
    if (repeat.most < repeat.least) return Fail("a repetition's maximum is below its minimum");
    return true;
  }

  // The rewriting of llama.cpp: S{m,n} is S m times and then n-m optional rules inside each other; without a maximum one rule of itself.
  bool Apply(const Repeat& repeat, Rule& rule, size_t last, uint64_t& rules_of_last) {
    if (last == rule.size()) return Fail("a repetition has nothing to repeat");
    const bool endless = repeat.most == kNoMaximum;
    const uint64_t copies = !endless && repeat.most > 0 ? repeat.most : repeat.least > 0 ? repeat.least : 1;
    if (rules_of_last > limits_.repetitions_max || rules_of_last * copies > limits_.repetitions_max) {
      return Fail("nested repetitions multiply to more than " + std::to_string(limits_.repetitions_max));
    }
    const Rule item(rule.begin() + static_cast<ptrdiff_t>(last), rule.end());
    if (repeat.least == 0) {
      rule.resize(last);
    } else {
      if (!Count((repeat.least - 1) * item.size())) return false;
      for (uint64_t i = 1; i < repeat.least; ++i) rule.insert(rule.end(), item.begin(), item.end());
    }
    const uint64_t optional = endless ? 1 : repeat.most - repeat.least;
    uint32_t previous = 0;
    for (uint64_t i = 0; i < optional; ++i) {
      uint32_t id = 0;
      if (!AddRule(id) || !Count(item.size() + 3)) return false;
      Rule made = item;
      if (endless || i > 0) made.push_back({Kind::kRule, endless ? id : previous});
      made.push_back({Kind::kAlternative, 0});
      made.push_back({Kind::kEnd, 0});
      rules_[id] = std::move(made);
      previous = id;
    }
    rules_of_last *= copies;
    return optional == 0 || Push(rule, Kind::kRule, previous);
  }

  Result<Rules> Finish() {
    const auto root = named_.find("root");
    if (root == named_.end()) return Refused("the grammar cannot be used: it has no rule \"root\"");
    if (rules_.size() > limits_.rules_max) {
      return Refused("the grammar cannot be used: it needs more than " + std::to_string(limits_.rules_max) + " rules");
    }
    for (const auto& [name, id] : named_) {
      if (rules_[id].empty()) return Refused("the grammar cannot be used: it refers to a rule that is not defined");
    }
    return Rules{std::move(rules_), root->second};
  }

  std::string_view text_;
  const Limits& limits_;
  const uint32_t vocabulary_size_;
  const IsToken& is_token_;
  size_t at_ = 0;
  size_t elements_ = 0;
  std::vector<Rule> rules_;
  std::unordered_map<std::string, uint32_t> named_;
  std::string error_;
};

}  // namespace

Result<Rules> ReadGrammar(std::string_view text, const Limits& limits, uint32_t vocabulary_size, const IsToken& is_token) {
  if (text.size() > limits.text_bytes_max) {
    return Refused("the grammar has " + std::to_string(text.size()) + " bytes; at most " + std::to_string(limits.text_bytes_max) + " are taken");
  }
  if (text.find('\0') != std::string_view::npos || !IsUtf8(text)) return Refused("the grammar cannot be used: it is not UTF-8 text");
  return Reader(text, limits, vocabulary_size, is_token).Read();
}

}  // namespace meshnet::grammar
