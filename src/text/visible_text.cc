#include "text/visible_text.h"

#include <algorithm>
#include <cstdint>

namespace meshnet::text {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

struct Character {
  size_t length = 0;      // bytes it takes, or bytes to skip when invalid
  bool valid = false;
  bool unfinished = false;  // valid so far, but the bytes end
};

// The character at the start of `bytes`, by table 3-7 of the Unicode standard; an invalid one covers its maximal valid beginning.
Character CharacterAt(std::string_view bytes) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return {1, true, false};
  size_t length = first >= 0xC2 && first <= 0xDF ? 2 : first >= 0xE0 && first <= 0xEF ? 3 : first >= 0xF0 && first <= 0xF4 ? 4 : 0;
  if (length == 0) return {1, false, false};
  for (size_t i = 1; i < length; ++i) {
    if (i >= bytes.size()) return {i, false, true};
    uint8_t low = 0x80, high = 0xBF;
    if (i == 1) {
      if (first == 0xE0) low = 0xA0;
      if (first == 0xED) high = 0x9F;  // no surrogates
      if (first == 0xF0) low = 0x90;
      if (first == 0xF4) high = 0x8F;
    }
    if (byte(i) < low || byte(i) > high) return {i, false, false};
  }
  return {length, true, false};
}

}  // namespace

std::string ToUtf8(std::string_view bytes, size_t* unfinished) {
  std::string text;
  text.reserve(bytes.size());
  if (unfinished != nullptr) *unfinished = 0;
  while (!bytes.empty()) {
    const Character character = CharacterAt(bytes);
    if (character.unfinished && unfinished != nullptr) {
      *unfinished = bytes.size();
      break;
    }
    text += character.valid ? bytes.substr(0, character.length) : kReplacement;
    bytes.remove_prefix(character.length);
  }
  return text;
}

VisibleText::VisibleText(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase_if(stops_, [](const std::string& stop) { return stop.empty(); });
  for (const std::string& stop : stops_) stop_bytes_max_ = std::max(stop_bytes_max_, stop.size());
}

std::string VisibleText::Add(std::string_view bytes) {
  if (stopped_) return "";
  added_ += bytes.size();
  for (char byte : bytes) {
    // The stop string that is complete first wins, so that the cut into tokens does not matter; of several that end here, the longest.
    held_.push_back(byte);
    size_t longest = 0;
    for (const std::string& stop : stops_) {
      if (stop.size() > longest && held_.ends_with(stop)) longest = stop.size();
    }
    if (longest > 0) {
      held_.resize(held_.size() - longest);
      stopped_ = true;
      return Release(held_.size());
    }
  }
  return Release(held_.size() - PossibleStop());
}

std::string VisibleText::Flush() { return Release(held_.size()); }

std::string VisibleText::Release(size_t count) {
  size_t unfinished = 0;
  std::string text = ToUtf8(std::string_view(held_).substr(0, count), &unfinished);
  released_ += count - unfinished;
  held_.erase(0, count - unfinished);
  return text;
}

size_t VisibleText::PossibleStop() const {
  for (size_t length = std::min(held_.size(), stop_bytes_max_); length > 0; --length) {
    const std::string_view tail = std::string_view(held_).substr(held_.size() - length);
    for (const std::string& stop : stops_) {
      if (stop.size() > length && stop.starts_with(tail)) return length;
    }
  }
  return 0;
}

}  // namespace meshnet::text
