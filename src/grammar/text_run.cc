#include "grammar/text_run.h"

#include <algorithm>

#include "grammar/utf8.h"

namespace meshnet::grammar {
namespace {

bool IsBlank(uint32_t c) {
  return c == ' ' || (c >= '\t' && c <= '\r') || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
         c == 0x202F || c == 0x205F || c == 0x3000;
}

bool EndsPhrase(uint32_t c) { return c == '\n' || (c > ' ' && c < 0x7F && !(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z')); }

}  // namespace

size_t LongestRun(std::string_view text) {
  size_t longest = 0, run = 0, phrase = 0;
  bool was_blank = false;
  for (size_t at = 0; at < text.size();) {
    const uint32_t c = TakeCodePoint(text, at);
    const bool blank = IsBlank(c);
    run = blank == was_blank ? run + 1 : 1;
    phrase = EndsPhrase(c) ? 0 : phrase + 1;
    was_blank = blank;
    longest = std::max({longest, run, phrase});
  }
  return longest;
}

}  // namespace meshnet::grammar
