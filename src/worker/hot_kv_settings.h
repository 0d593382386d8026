// The four MESHNET_HOT_KV_* settings of a worker.
#pragma once

#include <cstdint>
#include <functional>

#include "base/status.h"

namespace meshnet {

struct HotKvSettings {
  uint32_t sessions_max = 8;       // 1..256
  uint32_t context_tokens = 4096;  // 1..1048576
  uint32_t budget_tokens = 32768;  // context_tokens..16777216
  uint64_t ttl_seconds = 600;      // 1..31536000
};
// Reads the environment through `get` (nullptr: unset). A value that is not a positive number, or a context above the budget, is refused:
// kBadConfiguration names the variable and its allowed range.
Result<HotKvSettings> ReadHotKvSettings(const std::function<const char*(const char*)>& get);

}  // namespace meshnet
