// File names of the parts of a split set: PREFIX-00002-of-00003.gguf. Pure text; links are never followed, so siblings are those of the
// name as it was typed (the link farm of a model hub's cache stays usable).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace meshnet::gguf {

struct SplitName {
  std::string prefix;            // everything before "-00002-of-00003.gguf", folder included
  uint32_t number = 0;           // from 1
  uint32_t count = 0;
};

std::optional<SplitName> ParseSplitName(std::string_view path);
std::string FormatSplitName(const std::string& prefix, uint32_t number, uint32_t count);

}  // namespace meshnet::gguf
