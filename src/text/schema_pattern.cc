#include "text/schema_pattern.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <vector>

#include "grammar/utf8.h"

namespace meshnet::text {
namespace {

constexpr size_t kPatternBytesMax = 2000;
constexpr size_t kDepthMax = 40;
constexpr uint32_t kCountMax = 2000;  // llama.cpp's bound of a repetition
constexpr uint32_t kLastCodePoint = 0x10FFFF;

struct Range {
  uint32_t first;
  uint32_t last;
};
using Class = std::vector<Range>;

const Class kDigits = {{'0', '9'}};
const Class kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const Class kSpaces = {{'\t', '\r'}, {' ', ' '}, {0xA0, 0xA0}, {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F},
                       {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
// What `.` does not match.
const Class kLineEnds = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
// What a JSON string holds only as an escape, and surrogates, which are no characters.
const Class kEscaped = {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}, {0x7F, 0x7F}, {0xD800, 0xDFFF}};

void Append(Class* set, const Class& more) { set->insert(set->end(), more.begin(), more.end()); }

// Everything that is in none of the ranges.
Class Complement(Class set) {
  std::sort(set.begin(), set.end(), [](const Range& a, const Range& b) { return a.first < b.first; });
  Class rest;
  uint32_t next = 0;
  for (const Range& range : set) {
    if (range.first > next) rest.push_back({next, range.first - 1});
    next = std::max(next, range.last + 1);
  }
  if (next <= kLastCodePoint) rest.push_back({next, kLastCodePoint});
  return rest;
}

// The part of `set` that a JSON string can hold as it is.
Class Unescaped(const Class& set) {
  Class out = Complement(set);
  Append(&out, kEscaped);
  return Complement(std::move(out));
}

std::string Escape(uint32_t code_point) {
  char text[16];
  std::snprintf(text, sizeof text, code_point < 0x80 ? "\\x%02X" : "\\U%08X", code_point);
  return text;
}

// Empty when nothing of it can stand in a JSON string.
std::string Print(const Class& set) {
  const Class usable = Unescaped(set);
  if (usable.empty()) return "";
  std::string text = "[";
  for (const Range& range : usable) {
    text += Escape(range.first);
    if (range.last > range.first) text.append("-").append(Escape(range.last));
  }
  return text + "]";
}

class Rewriter {
 public:
  explicit Rewriter(std::string_view text) : text_(text) {}

  PatternRewrite Run() {
    PatternRewrite result;
    std::string body;
    for (;;) {
      if (!TopAlternative(&body)) break;
      if (!Take('|')) break;
      body += '|';
    }
    if (fault_.empty() && at_ < text_.size()) Fail("closes a parenthesis that it did not open");
    result.fault = fault_;
    result.ok = fault_.empty();
    if (result.ok) result.pattern.append("^(").append(body).append(")$");
    return result;
  }

 private:
  bool Fail(std::string fault) {
    if (fault_.empty()) fault_ = std::move(fault);
    return false;
  }
  bool Take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  char Peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  // An anchor binds its own alternative only; without one, anything may stand there.
  bool TopAlternative(std::string* out) {
    static const std::string anything = Print({{0, kLastCodePoint}}) + "*";
    if (!Take('^')) *out += anything;
    bool closed = false;
    if (!Sequence(out, 0, &closed)) return false;
    if (!closed) *out += anything;
    return true;
  }

  // Up to `|`, `)` or the end. `closed` (top level only): it ended with `$`.
  bool Sequence(std::string* out, size_t depth, bool* closed) {
    while (at_ < text_.size() && Peek() != '|' && Peek() != ')') {
      if (Peek() == '$') {
        ++at_;
        if (closed == nullptr || (at_ < text_.size() && Peek() != '|')) return Fail("has an anchor in the middle");
        *closed = true;
        return true;
      }
      std::string item;
      if (!Item(&item, depth) || !Quantifier(&item)) return false;
      *out += item;
    }
    return true;
  }

  bool Item(std::string* item, size_t depth) {
    const char c = Peek();
    if (c == '(') return Group(item, depth);
    if (c == '^') return Fail("has an anchor in the middle");
    if (c == '*' || c == '+' || c == '?' || c == '{') return Fail("repeats nothing");
    if (c == '}' || c == ']') return Fail("has a bracket that nothing opened");
    Class set;
    if (c == '[') {
      if (!ReadClass(&set)) return false;
    } else if (c == '.') {
      ++at_;
      set = Complement(kLineEnds);
    } else if (c == '\\') {
      ++at_;
      if (!ReadEscape(&set, false)) return false;
    } else {
      const uint32_t code_point = NextCodePoint();
      set = {{code_point, code_point}};
    }
    *item = Print(set);
    return !item->empty() || Fail("needs a character that a JSON string can only hold as an escape");
  }

  bool Group(std::string* item, size_t depth) {
    if (depth >= kDepthMax) return Fail("nests too many parentheses");
    ++at_;
    if (Take('?') && !Take(':')) return Fail("uses a lookaround, a named group or flags");
    *item = "(";
    do {
      if (item->size() > 1) *item += '|';
      if (!Sequence(item, depth + 1, nullptr)) return false;
    } while (Take('|'));
    if (!Take(')')) return Fail("does not close a parenthesis");
    *item += ')';
    return true;
  }

  bool Quantifier(std::string* item) {
    const char c = Peek();
    if (c == '*' || c == '+' || c == '?') {
      ++at_;
      *item += c;
    } else if (c == '{') {
      ++at_;
      std::optional<uint32_t> min = Count(), max = min;
      if (!min) return Fail("has a { that starts no repetition");
      *item += "{" + std::to_string(*min);
      if (Take(',')) {
        *item += ',';
        if (Peek() != '}') {
          max = Count();
          if (!max || *max < *min) return Fail("has a repetition with a wrong upper bound");
          *item += std::to_string(*max);
        }
      }
      if (!Take('}')) return Fail("has a { that starts no repetition");
      *item += '}';
      if (*min > kCountMax || *max > kCountMax) return Fail("repeats something more than " + std::to_string(kCountMax) + " times");
    } else {
      return true;
    }
    Take('?');  // lazy: the same strings
    if (Peek() == '+' || Peek() == '*' || Peek() == '?' || Peek() == '{') return Fail("repeats a repetition");
    return true;
  }

  std::optional<uint32_t> Count() {
    if (Peek() < '0' || Peek() > '9') return std::nullopt;
    uint32_t number = 0;
    for (; Peek() >= '0' && Peek() <= '9'; ++at_) number = std::min<uint32_t>(number * 10 + static_cast<uint32_t>(Peek() - '0'), 1'000'000);
    return number;
  }

  uint32_t NextCodePoint() { return grammar::TakeCodePoint(text_, at_); }

  bool ReadHex(size_t digits, Class* set) {
    uint32_t code_point = 0;
    for (size_t i = 0; i < digits; ++i, ++at_) {
      const char c = Peek();
      const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
      if (digit < 0) return Fail("has an escape with too few hex digits");
      code_point = code_point << 4 | static_cast<uint32_t>(digit);
    }
    *set = {{code_point, code_point}};
    return true;
  }

  // Behind the backslash.
  bool ReadEscape(Class* set, bool in_class) {
    if (at_ >= text_.size()) return Fail("ends with a backslash");
    const char c = Peek();
    const auto one = [&](uint32_t code_point) {
      *set = {{code_point, code_point}};
      return true;
    };
    if (static_cast<uint8_t>(c) >= 0x80) return one(NextCodePoint());
    ++at_;
    switch (c) {
      case 'd': *set = kDigits; return true;
      case 'D': *set = Complement(kDigits); return true;
      case 'w': *set = kWord; return true;
      case 'W': *set = Complement(kWord); return true;
      case 's': *set = kSpaces; return true;
      case 'S': *set = Complement(kSpaces); return true;
      case 't': return one('\t');
      case 'n': return one('\n');
      case 'r': return one('\r');
      case 'f': return one('\f');
      case 'v': return one('\v');
      case 'x': return ReadHex(2, set);
      case 'u': return ReadHex(4, set);
      case 'b':
        if (in_class) return one('\b');
        return Fail("uses a word boundary");
      case 'B': return Fail("uses a word boundary");
      case 'p': case 'P': return Fail("uses a Unicode property");
      case 'k': case '0': case '1': case '2': case '3': case '4': case '5': case '6': case '7': case '8': case '9':
        return Fail("uses a back reference or an octal escape");
      case 'c': return Fail("uses a control escape");
      default: break;
    }
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return Fail("uses an unknown escape");
    return one(static_cast<uint8_t>(c));
  }

  bool ReadClass(Class* set) {
    ++at_;
    const bool negated = Take('^');
    while (at_ < text_.size() && Peek() != ']') {
      Class item;
      if (!ReadClassItem(&item)) return false;
      const bool single = item.size() == 1 && item[0].first == item[0].last;
      if (single && Peek() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
        ++at_;
        Class end;
        if (!ReadClassItem(&end)) return false;
        if (end.size() != 1 || end[0].first != end[0].last || end[0].last < item[0].first) return Fail("has a wrong range in a class");
        item[0].last = end[0].last;
      }
      Append(set, item);
    }
    if (!Take(']')) return Fail("does not close a class");
    if (negated) *set = Complement(std::move(*set));
    return true;
  }

  bool ReadClassItem(Class* item) {
    if (Take('\\')) return ReadEscape(item, true);
    const uint32_t code_point = NextCodePoint();
    *item = {{code_point, code_point}};
    return true;
  }

  std::string_view text_;
  size_t at_ = 0;
  std::string fault_;
};

}  // namespace

PatternRewrite RewritePattern(std::string_view pattern) {
  if (pattern.size() > kPatternBytesMax) return {false, "", "is longer than " + std::to_string(kPatternBytesMax) + " bytes"};
  return Rewriter(pattern).Run();
}

}  // namespace meshnet::text
