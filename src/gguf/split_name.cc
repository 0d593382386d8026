#include "gguf/split_name.h"

#include <cstdio>

namespace meshnet::gguf {
namespace {

std::optional<uint32_t> FiveDigits(std::string_view text) {
  uint32_t value = 0;
  for (char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
    value = value * 10 + static_cast<uint32_t>(c - '0');
  }
  return value;
}

}  // namespace

std::optional<SplitName> ParseSplitName(std::string_view path) {
  static constexpr std::string_view kEnd = ".gguf";
  static constexpr size_t kTail = 1 + 5 + 4 + 5 + kEnd.size();  // -00002-of-00003.gguf
  if (path.size() <= kTail || !path.ends_with(kEnd)) return std::nullopt;
  const std::string_view tail = path.substr(path.size() - kTail);
  if (tail[0] != '-' || tail.substr(6, 4) != "-of-") return std::nullopt;
  const std::optional<uint32_t> number = FiveDigits(tail.substr(1, 5));
  const std::optional<uint32_t> count = FiveDigits(tail.substr(10, 5));
  if (!number.has_value() || !count.has_value()) return std::nullopt;
  return SplitName{std::string(path.substr(0, path.size() - kTail)), *number, *count};
}

std::string FormatSplitName(const std::string& prefix, uint32_t number, uint32_t count) {
  char tail[40];
  std::snprintf(tail, sizeof(tail), "-%05u-of-%05u.gguf", number, count);
  return prefix + tail;
}

}  // namespace meshnet::gguf
