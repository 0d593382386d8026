// Time as an argument: pure code takes a `Time`; only the edges ask a clock for one.
#pragma once

#include <chrono>

namespace meshnet {

using Duration = std::chrono::nanoseconds;
// Monotonic; comparable within one process only.
using Time = std::chrono::time_point<std::chrono::steady_clock, Duration>;

class Waiting;

class Clock {
 public:
  virtual ~Clock() = default;
  // Thread-safe.
  virtual Time Now() const = 0;
  // How those who live by this clock wait (base/waiting.h): as threads of this machine, unless its time is not the machine's.
  virtual Waiting& waiting() const;
};

// For tests: stands still until told. Not thread-safe.
class ManualClock : public Clock {
 public:
  Time Now() const override { return now_; }
  void Advance(Duration duration) { now_ += duration; }

 private:
  Time now_{std::chrono::hours(1)};
};

}  // namespace meshnet
