// The header of one GGUF file, parsed and checked; parts of a split set are joined in model_file.cc.
#pragma once

#include <string>
#include <vector>

#include "gguf/model_file.h"

namespace meshnet::gguf {

// Bounds on what a header may hold; generous beside every published model, small beside the memory of a machine.
inline constexpr uint64_t kMetadataCountMax = 1 << 16;
inline constexpr uint64_t kTensorCountMax = 1 << 17;
inline constexpr uint64_t kKeyBytesMax = 65535;
inline constexpr uint64_t kTensorNameBytesMax = 63;    // GGML_MAX_NAME - 1
inline constexpr uint64_t kStringBytesMax = 16 << 20;
inline constexpr uint64_t kStringCountMax = 1 << 22;   // of all arrays together
inline constexpr uint64_t kHeaderBytesMax = 128 << 20;

struct PartHeader {
  Part part;
  uint32_t version = 0;
  std::vector<MetadataEntry> metadata;  // split.* included
  std::vector<TensorInfo> tensors;      // part index 0; offsets absolute
  uint64_t alignment = 32;
  uint64_t data_end = 0;                // behind the last tensor, padding included; at most the file's size

  const MetadataEntry* Find(std::string_view key) const;
};

// kBadModel: one sentence with file, offset, key or tensor, and value.
Result<PartHeader> ReadPartHeader(const std::string& path);

}  // namespace meshnet::gguf
