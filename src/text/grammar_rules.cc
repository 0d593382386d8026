#include "text/grammar_rules.h"

#include <algorithm>
#include <unordered_map>

namespace meshnet::text {
namespace {

constexpr uint64_t kUnbounded = UINT64_MAX;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsWord(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || IsDigit(c); }
bool IsHex(char c) { return IsDigit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

using Element = GrammarRules::Element;
using Kind = GrammarRules::Kind;

class Reader {
 public:
  Reader(std::string_view text, uint32_t vocabulary_size, const GrammarBounds& bounds)
      : text_(text), vocabulary_size_(vocabulary_size), bounds_(bounds) {}

  std::optional<std::string> Read();
  GrammarRules Take() { return std::move(result_); }

 private:
  // One open sequence: the rule itself or a group in it.
  struct Frame {
    uint32_t symbol = 0;
    std::vector<Element> elements;
    size_t item_start = 0;       // where the last item begins, for repetitions
    size_t item_weight = 0;      // elements llama.cpp stores for it; 0: nothing to repeat
    uint64_t item_rules = 1;     // llama.cpp's n_prev_rules
    size_t symbols_before = 0;
  };

  bool Fail(std::string fault) {
    if (!fault_) {
      const size_t line = 1 + static_cast<size_t>(std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(std::min(at_, text_.size())), '\n'));
      fault_ = std::move(fault) + " (line " + std::to_string(line) + ")";
    }
    return false;
  }
  char Peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  void SkipSpace(bool newline_ok) {
    for (;;) {
      const char c = Peek();
      if (c == '#') {
        while (at_ < text_.size() && Peek() != '\n' && Peek() != '\r') ++at_;
      } else if (c == ' ' || c == '\t' || (newline_ok && (c == '\n' || c == '\r'))) {
        ++at_;
      } else {
        return;
      }
    }
  }
  std::string_view Word() {
    const size_t begin = at_;
    while (IsWord(Peek())) ++at_;
    return text_.substr(begin, at_ - begin);
  }
  uint32_t Symbol(std::string_view name) {
    auto [found, inserted] = symbols_.emplace(std::string(name), static_cast<uint32_t>(result_.names.size()));
    if (inserted) AddSymbol(std::string(name));
    return found->second;
  }
  uint32_t AddSymbol(std::string name) {
    result_.names.push_back(std::move(name));
    result_.rules.emplace_back();
    defined_.push_back(false);
    return static_cast<uint32_t>(result_.names.size() - 1);
  }
  bool Spend(uint64_t elements) {
    // Both are far below 2^63: counts are bounded when they are read.
    spent_ += elements;
    return spent_ <= bounds_.elements_max || Fail("is too large once its repetitions are written out");
  }

  bool ReadRule();
  bool ReadSequences(uint32_t symbol);
  bool ReadItem(std::vector<Frame>& frames);
  bool ReadCharacter();
  bool ReadLiteral(Frame& frame);
  bool ReadClass(Frame& frame);
  bool ReadToken(Frame& frame);
  bool ReadRepetition(Frame& frame, bool nested);
  bool Repeat(Frame& frame, uint64_t min, uint64_t max);
  bool ReadCount(uint64_t* count);
  void Terminal(Frame& frame, size_t weight) {
    frame.item_start = frame.elements.size();
    frame.item_weight = weight;
    frame.item_rules = 1;
    if (weight > 0) frame.elements.push_back({Kind::kTerminal, 0});
  }
  void Reference(Frame& frame, uint32_t symbol, uint64_t item_rules) {
    frame.item_start = frame.elements.size();
    frame.item_weight = 1;
    frame.item_rules = item_rules;
    frame.elements.push_back({Kind::kReference, symbol});
  }

  std::string_view text_;
  uint32_t vocabulary_size_;
  GrammarBounds bounds_;
  size_t at_ = 0;
  uint64_t spent_ = 0;
  GrammarRules result_;
  std::vector<bool> defined_;
  std::unordered_map<std::string, uint32_t> symbols_;
  std::optional<std::string> fault_;
};

std::optional<std::string> Reader::Read() {
  if (text_.size() > bounds_.bytes_max) return "has more than " + std::to_string(bounds_.bytes_max) + " bytes";
  // llama.cpp takes it as a C string.
  if (text_.find('\0') != std::string_view::npos) return "contains a NUL character";
  SkipSpace(true);
  while (at_ < text_.size()) {
    if (!ReadRule()) return fault_;
  }
  for (size_t symbol = 0; symbol < result_.names.size(); ++symbol) {
    if (!defined_[symbol]) return "uses the rule \"" + result_.names[symbol].substr(0, 100) + "\", which it does not define";
  }
  if (!symbols_.contains("root")) return "has no rule named \"root\"";
  return std::nullopt;
}

bool Reader::ReadRule() {
  const std::string_view name = Word();
  if (name.empty()) return Fail("has something else where the name of a rule should stand");
  SkipSpace(false);
  if (Peek() != ':' || Peek(1) != ':' || Peek(2) != '=') return Fail("misses ::= after the name of a rule");
  at_ += 3;
  SkipSpace(true);
  const uint32_t symbol = Symbol(name);
  if (!ReadSequences(symbol)) return false;
  if (Peek() == '\r') {
    at_ += Peek(1) == '\n' ? 2 : 1;
  } else if (Peek() == '\n') {
    ++at_;
  } else if (at_ < text_.size()) {
    return Fail("has an unexpected character in a rule");
  }
  SkipSpace(true);
  return true;
}

bool Reader::ReadSequences(uint32_t symbol) {
  std::vector<Frame> frames(1);
  frames.back().symbol = symbol;
  for (;;) {
    Frame& frame = frames.back();
    const bool nested = frames.size() > 1;
    const char c = Peek();
    if (c == '(') {
      if (frames.size() > bounds_.depth_max) return Fail("nests more than " + std::to_string(bounds_.depth_max) + " parentheses");
      ++at_;
      SkipSpace(true);
      Frame group;
      group.symbols_before = result_.names.size();
      group.symbol = AddSymbol("");
      frames.push_back(std::move(group));
    } else if (c == '|') {
      ++at_;
      SkipSpace(true);
      frame.elements.push_back({Kind::kAlternative, 0});
      frame.item_weight = 0;
      if (!Spend(1)) return false;
    } else if (c == ')' && nested) {
      ++at_;
      Frame group = std::move(frames.back());
      frames.pop_back();
      result_.rules[group.symbol] = std::move(group.elements);
      defined_[group.symbol] = true;
      Reference(frames.back(), group.symbol, std::max<uint64_t>(1, result_.names.size() - group.symbols_before));
      if (!Spend(2)) return false;
      SkipSpace(frames.size() > 1);
    } else if (c == '\0' || c == ')' || c == '\n' || c == '\r') {
      if (nested) return Fail("does not close a parenthesis");
      result_.rules[symbol] = std::move(frames.back().elements);
      defined_[symbol] = true;
      return Spend(1);
    } else if (!ReadItem(frames)) {
      return false;
    }
  }
}

bool Reader::ReadItem(std::vector<Frame>& frames) {
  Frame& frame = frames.back();
  const bool nested = frames.size() > 1;
  const char c = Peek();
  if (c == '*' || c == '+' || c == '?' || c == '{') return ReadRepetition(frame, nested);
  if (c == '"') {
    if (!ReadLiteral(frame)) return false;
  } else if (c == '[') {
    if (!ReadClass(frame)) return false;
  } else if (c == '<' || c == '!') {
    if (!ReadToken(frame)) return false;
  } else if (c == '.') {
    ++at_;
    Terminal(frame, 1);
  } else if (IsWord(c)) {
    Reference(frame, Symbol(Word()), 1);
  } else {
    return Fail("has an unexpected character in a rule");
  }
  if (!Spend(std::max<size_t>(1, frame.item_weight))) return false;
  SkipSpace(nested);
  return true;
}

bool Reader::ReadCharacter() {
  if (at_ >= text_.size()) return Fail("ends inside a literal");
  if (Peek() != '\\') {
    // Bytes of one UTF-8 character; the text is valid UTF-8.
    ++at_;
    while ((static_cast<uint8_t>(Peek()) & 0xC0) == 0x80) ++at_;
    return true;
  }
  const char c = Peek(1);
  const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
  if (digits == 0 && std::string_view("trn\\\"[]-").find(c) == std::string_view::npos) return Fail("has an unknown escape");
  for (size_t i = 0; i < digits; ++i) {
    if (!IsHex(Peek(2 + i))) return Fail("has an escape with too few hex digits");
  }
  at_ += 2 + digits;
  return true;
}

bool Reader::ReadLiteral(Frame& frame) {
  ++at_;
  size_t characters = 0;
  while (Peek() != '"') {
    if (!ReadCharacter()) return false;
    ++characters;
  }
  ++at_;
  // One element stands for the whole literal here: only whether it is empty matters to what may begin a rule.
  Terminal(frame, characters);
  return true;
}

bool Reader::ReadClass(Frame& frame) {
  ++at_;
  if (Peek() == '^') ++at_;
  size_t characters = 0;
  while (Peek() != ']') {
    if (!ReadCharacter()) return false;
    ++characters;
    if (Peek() == '-' && Peek(1) != ']') {
      ++at_;
      if (!ReadCharacter()) return false;
      ++characters;
    }
  }
  ++at_;
  // llama.cpp would take it for "nothing", which constrains nothing.
  if (characters == 0) return Fail("has an empty character class");
  Terminal(frame, characters);
  return true;
}

bool Reader::ReadToken(Frame& frame) {
  if (Peek() == '!') ++at_;
  if (Peek() != '<') return Fail("misses < after !");
  const size_t begin = at_++;
  if (Peek() == '[') {
    ++at_;
    uint64_t id = 0;
    if (!ReadCount(&id)) return false;
    if (Peek() != ']' || Peek(1) != '>') return Fail("does not close a token number with ]>");
    at_ += 2;
    if (id >= vocabulary_size_) return Fail("names a token that the vocabulary does not have");
  } else {
    const size_t end = text_.find('>', at_);
    if (end == std::string_view::npos) return Fail("does not close a token with >");
    at_ = end + 1;
    result_.token_texts.emplace_back(text_.substr(begin, at_ - begin));
  }
  Terminal(frame, 1);
  return true;
}

bool Reader::ReadCount(uint64_t* count) {
  if (!IsDigit(Peek())) return Fail("misses a number");
  uint64_t number = 0;
  for (; IsDigit(Peek()); ++at_) {
    number = number * 10 + static_cast<uint64_t>(Peek() - '0');
    if (number > 1'000'000'000) return Fail("has a number that is too large");
  }
  *count = number;
  return true;
}

bool Reader::ReadRepetition(Frame& frame, bool nested) {
  const char c = Peek();
  ++at_;
  SkipSpace(nested);
  if (c == '*') return Repeat(frame, 0, kUnbounded);
  if (c == '+') return Repeat(frame, 1, kUnbounded);
  if (c == '?') return Repeat(frame, 0, 1);
  uint64_t min = 0, max = kUnbounded;
  if (!ReadCount(&min)) return false;
  SkipSpace(nested);
  if (Peek() == '}') {
    max = min;
  } else if (Peek() == ',') {
    ++at_;
    SkipSpace(nested);
    if (IsDigit(Peek()) && !ReadCount(&max)) return false;
    SkipSpace(nested);
    if (Peek() != '}') return Fail("does not close a repetition with }");
  } else {
    return Fail("misses , or } in a repetition");
  }
  ++at_;
  SkipSpace(nested);
  return Repeat(frame, min, max);
}

bool Reader::Repeat(Frame& frame, uint64_t min, uint64_t max) {
  if (frame.item_weight == 0) return Fail("repeats nothing");
  if (max < min) return Fail("has a repetition whose upper bound is below its lower one");
  const bool open = max == kUnbounded;
  if (min > bounds_.repetitions_max || (!open && max > bounds_.repetitions_max)) {
    return Fail("repeats something more than " + std::to_string(bounds_.repetitions_max) + " times");
  }
  const uint64_t total = !open && max > 0 ? max : min > 0 ? min : 1;
  if (frame.item_rules * total > bounds_.repetitions_max) return Fail("repeats too large an item too often");
  const uint64_t optional = open ? 1 : max - min;
  if (!Spend(frame.item_weight * (min + optional) + 3 * optional)) return false;

  const std::vector<Element> item(frame.elements.begin() + static_cast<std::ptrdiff_t>(frame.item_start), frame.elements.end());
  if (min == 0) frame.elements.resize(frame.item_start);
  for (uint64_t i = 1; i < min; ++i) frame.elements.insert(frame.elements.end(), item.begin(), item.end());
  uint32_t last = 0;
  for (uint64_t i = 0; i < optional; ++i) {
    const uint32_t symbol = AddSymbol("");
    std::vector<Element> rule = item;
    if (i > 0 || open) rule.push_back({Kind::kReference, open ? symbol : last});
    rule.push_back({Kind::kAlternative, 0});
    result_.rules[symbol] = std::move(rule);
    defined_[symbol] = true;
    last = symbol;
  }
  if (optional > 0) frame.elements.push_back({Kind::kReference, last});
  frame.item_weight = frame.item_weight * min + (optional > 0 ? 1 : 0);
  frame.item_rules *= total;
  return true;
}

}  // namespace

std::optional<std::string> ReadGrammar(std::string_view grammar, uint32_t vocabulary_size, const GrammarBounds& bounds, GrammarRules* rules) {
  Reader reader(grammar, vocabulary_size, bounds);
  auto fault = reader.Read();
  *rules = reader.Take();
  return fault;
}

}  // namespace meshnet::text
