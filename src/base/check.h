// Invariants of our own code: a broken one means wrong KV, which is wrong text that nobody notices, so the process ends.
#pragma once

namespace meshnet {
// Prints the broken claim and where it stands, then aborts. Never returns.
[[noreturn]] void CheckFailed(const char* claim, const char* file, int line);
}  // namespace meshnet

#define MESHNET_CHECK(claim) \
  do {                       \
    if (!(claim)) [[unlikely]] ::meshnet::CheckFailed(#claim, __FILE__, __LINE__); \
  } while (false)
