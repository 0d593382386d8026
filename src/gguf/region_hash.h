// SHA-256 of regions of files, on two threads, remembered in the user's cache folder ($XDG_CACHE_HOME/meshnet, else ~/.cache/meshnet).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "gguf/model_file.h"

namespace meshnet::gguf {

struct Region {
  uint32_t part = 0;             // index into the parts
  uint64_t offset = 0;
  uint64_t bytes = 0;
  bool zeros = false;            // not hashed: checked to hold zeros only
};

// One digest per region, in order; of a `zeros` region: all zero when it holds zeros, else all ones. A remembered digest is used while the
// file's device, inode, size and times are what they were. kFailure when a file cannot be read or changes meanwhile.
Result<std::vector<Sha256Digest>> HashRegions(const std::vector<Part>& parts, const std::vector<Region>& regions,
                                              const std::function<void(uint64_t done_bytes, uint64_t total_bytes)>& progress);

}  // namespace meshnet::gguf
