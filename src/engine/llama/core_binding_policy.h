// When the threads of an engine's calls are kept on a core each. Left to the scheduler they are woken beside each other or moved about between
// two workers' turns, and each waits for the other at every operator; bound to a core each, they are slower than that only where somebody else
// wants one of the cores. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"

namespace meshnet {

// Where each of `threads` belongs: on one of `cores` (their logical CPUs), when they are as many as those or as all CPUs in them. Empty: there
// is a choice, which is the scheduler's.
std::vector<std::vector<uint32_t>> PlacesOf(uint32_t threads, const std::vector<std::vector<uint32_t>>& cores);

class CoreBindingPolicy {
 public:
  // A thread that waits for its core for more than this part of the time shares it with somebody.
  static constexpr double kWaitMax = 0.15;
  static constexpr Duration kJudgedAfter = std::chrono::seconds(1);  // of calls
  static constexpr Duration kPauseMin = std::chrono::seconds(10), kPauseMax = std::chrono::minutes(10);

  bool bound() const { return bound_; }
  // A call ended that lasted `took`. True: tell how long the threads waited (Waited).
  bool Called(Time now, Duration took);
  // The longest that one of the threads, ready to run, has waited for its core since the last time.
  void Waited(Time now, Duration longest);

 private:
  bool bound_ = true;
  Time again_at_{};  // while not bound
  Duration pause_ = kPauseMin;
  Duration took_{0};  // since it was last judged
};

}  // namespace meshnet
