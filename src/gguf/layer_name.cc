#include "gguf/layer_name.h"

namespace meshnet::gguf {

std::optional<LayerName> ParseLayerName(std::string_view name) {
  if (!name.starts_with("blk.")) return std::nullopt;
  name.remove_prefix(4);
  uint32_t layer = 0;
  size_t digits = 0;
  while (digits < name.size() && name[digits] >= '0' && name[digits] <= '9') {
    if (digits == 6) return std::nullopt;
    layer = layer * 10 + static_cast<uint32_t>(name[digits] - '0');
    ++digits;
  }
  if (digits > 1 && name[0] == '0') return std::nullopt;  // stock code never looks for "blk.07."
  if (digits == 0 || digits == name.size() || name[digits] != '.') return std::nullopt;
  return LayerName{layer, name.substr(digits + 1)};
}

std::string FormatLayerName(uint32_t layer, std::string_view rest) { return "blk." + std::to_string(layer) + "." + std::string(rest); }

}  // namespace meshnet::gguf
