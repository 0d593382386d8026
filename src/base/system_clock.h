// The machine's monotonic clock and its random bytes.
#pragma once

#include "base/clock.h"
#include "base/ids.h"

namespace meshnet {

class SystemClock : public Clock {
 public:
  Time Now() const override { return std::chrono::steady_clock::now(); }
};

// Fills `out` with unpredictable bytes; ends the process when the system has none to give.
void FillRandom(uint8_t* out, size_t count);

template <typename Id>
Id RandomId() {
  Id id;
  FillRandom(id.bytes.data(), id.bytes.size());
  return id;
}

}  // namespace meshnet
