// "blk.7.attn_q.weight": the layer in a tensor's name, and names under another layer number. Pure text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace meshnet::gguf {

struct LayerName {
  uint32_t layer = 0;
  std::string_view rest;         // "attn_q.weight"; a view into the name
};

// Nothing for a tensor that belongs to no layer.
std::optional<LayerName> ParseLayerName(std::string_view name);
std::string FormatLayerName(uint32_t layer, std::string_view rest);

}  // namespace meshnet::gguf
