#include "wire/clean_text.h"

#include <cstdint>

namespace meshnet {
namespace {

// Length of the well-formed UTF-8 character at the start of `text`; 0 when there is none (overlong, surrogate, truncated, beyond U+10FFFF).
size_t CharacterLength(std::string_view text) {
  auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  auto continues = [&](size_t i) { return i < text.size() && (byte(i) & 0xc0) == 0x80; };
  uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead <= 0xdf) return continues(1) ? 2 : 0;
  if (lead >= 0xe0 && lead <= 0xef) {
    if (!continues(1) || !continues(2)) return 0;
    if (lead == 0xe0 && byte(1) < 0xa0) return 0;
    if (lead == 0xed && byte(1) > 0x9f) return 0;
    return 3;
  }
  if (lead >= 0xf0 && lead <= 0xf4) {
    if (!continues(1) || !continues(2) || !continues(3)) return 0;
    if (lead == 0xf0 && byte(1) < 0x90) return 0;
    if (lead == 0xf4 && byte(1) > 0x8f) return 0;
    return 4;
  }
  return 0;
}

}  // namespace

std::string CleanText(std::string_view text, size_t bytes_max) {
  std::string clean;
  while (!text.empty()) {
    size_t length = CharacterLength(text);
    size_t taken = length == 0 ? 1 : length;
    if (clean.size() + taken > bytes_max) break;
    uint8_t lead = static_cast<uint8_t>(text[0]);
    if (length == 0) {
      clean.push_back('?');
    } else if (lead < 0x20 || lead == 0x7f || (lead == 0xc2 && static_cast<uint8_t>(text[1]) < 0xa0)) {
      clean.push_back(' ');
    } else {
      clean.append(text.substr(0, length));
    }
    text.remove_prefix(taken);
  }
  return clean;
}

}  // namespace meshnet
