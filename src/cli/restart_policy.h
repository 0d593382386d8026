// How often and when a dead worker is started again. Pure: time is an argument.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>

#include "base/clock.h"

namespace meshnet::cli {

// One worker's deaths. At most `restarts_max` restarts within any `window`; the death after that ends it.
class RestartPolicy {
 public:
  RestartPolicy(uint32_t restarts_max, Duration window) : restarts_max_(restarts_max), window_(window) {}

  enum class Verdict { kRestart, kGiveUp };
  Verdict OnDeath(Time now) {
    while (!restarts_.empty() && now - restarts_.front() >= window_) restarts_.pop_front();
    if (restarts_.size() >= restarts_max_) return Verdict::kGiveUp;
    restarts_.push_back(now);
    return Verdict::kRestart;
  }
  // Before the restart that was allowed last: none at first, since an answer waits; then longer each time, for trouble that passes.
  Duration Pause() const {
    if (restarts_.size() < 2) return Duration(0);
    return std::chrono::milliseconds(200) * (1 << std::min<size_t>(restarts_.size() - 2, 5));
  }

 private:
  uint32_t restarts_max_;
  Duration window_;
  std::deque<Time> restarts_;
};

}  // namespace meshnet::cli
