// ggml's tensor types as the pinned llama.cpp lays them out (ggml/src/ggml.c): what a row of one costs in a file and in memory.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace meshnet::gguf {

struct GgmlType {
  uint32_t id = 0;
  const char* name = "";
  uint32_t block_elements = 1;   // a row is a whole number of blocks
  uint32_t block_bytes = 0;
};

// The types used by name in our own code.
inline constexpr uint32_t kTypeF32 = 0;
inline constexpr uint32_t kTypeF16 = 1;
inline constexpr uint32_t kTypeQ8_0 = 8;

// Null for an id that the pinned llama.cpp does not load (unknown, or removed from the format).
const GgmlType* FindGgmlType(uint32_t id);
const GgmlType* FindGgmlType(std::string_view name);

// Bytes of a tensor; nothing when a row is not a whole number of blocks, a dimension is 0, or the size does not fit 63 bits.
std::optional<uint64_t> TensorBytes(const GgmlType& type, std::span<const uint64_t> dims);

}  // namespace meshnet::gguf
