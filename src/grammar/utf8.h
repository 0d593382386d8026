// The little that reading grammars, patterns and runs of text needs of UTF-8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace meshnet::grammar {

// The code point at `at`, which is inside the text and moves behind it; of invalid text, something, but never beyond the end.
inline uint32_t TakeCodePoint(std::string_view text, size_t& at) {
  const auto first = static_cast<unsigned char>(text[at++]);
  const int more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : first >= 0xc0 ? 1 : 0;
  uint32_t value = more == 0 ? first : first & (0x3fu >> more);
  for (int i = 0; i < more && at < text.size(); ++i) value = value << 6 | (static_cast<unsigned char>(text[at++]) & 0x3f);
  return value;
}

// Well formed: no stray or missing continuation byte, nothing overlong, no surrogate, nothing above U+10FFFF.
inline bool IsUtf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const auto first = static_cast<unsigned char>(text[at]);
    const size_t length = first < 0x80 ? 1 : first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    if ((first >= 0x80 && first < 0xc2) || first > 0xf4 || at + length > text.size()) return false;
    for (size_t i = 1; i < length; ++i) {
      if ((static_cast<unsigned char>(text[at + i]) & 0xc0) != 0x80) return false;
    }
    size_t next = at;
    const uint32_t value = TakeCodePoint(text, next);
    if ((length == 3 && value < 0x800) || (length == 4 && value < 0x10000) || value > 0x10ffff || (value >= 0xd800 && value < 0xe000)) return false;
    at = next;
  }
  return true;
}

}  // namespace meshnet::grammar
