// The bytes of a GGUF header (version 3, little endian): metadata, tensor table, padding. Pure; data is written by the caller.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gguf/model_file.h"

namespace meshnet::gguf {

inline constexpr uint64_t kDefaultAlignment = 32;

// A row of the tensor table to be written. `bytes` must be what type and dims give.
struct TensorLayout {
  std::string name;
  uint32_t type = 0;             // ggml type id
  std::vector<uint64_t> dims;    // ne0 first
  uint64_t bytes = 0;
};

struct EncodedHeader {
  std::string bytes;             // ends where the data section begins
  std::vector<uint64_t> offsets; // of each tensor's data, from the start of the file; back to back, aligned
  uint64_t file_bytes = 0;       // with the padding after the last tensor
};

// Preconditions: names unique, at most 4 dims, arrays not nested. A `general.alignment` in the metadata must not be there: it is 32.
EncodedHeader EncodeHeader(std::span<const MetadataEntry> metadata, std::span<const TensorLayout> tensors);

uint64_t Aligned(uint64_t offset, uint64_t alignment);

}  // namespace meshnet::gguf
