// How much memory this process and its children may still take.
#pragma once

#include <cstdint>
#include <optional>

#include "base/status.h"

namespace meshnet::cli {

// The smaller of what the machine has available and what the memory limit of our cgroup leaves; nothing when neither can be read.
// MESHNET_MEMORY_LIMIT_BYTES lowers it; kBadConfiguration when that is no number.
Result<std::optional<uint64_t>> AvailableMemory();

// Resident bytes of a process, and how many of them are file pages (mapped weights); 0 when it is gone.
struct ProcessMemory {
  uint64_t resident_bytes = 0;
  uint64_t resident_file_bytes = 0;
};
ProcessMemory MemoryOfProcess(int pid);

}  // namespace meshnet::cli
