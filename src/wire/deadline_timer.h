// One thread that runs functions when their time has come: the deadlines of calls in flight.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "base/clock.h"

namespace meshnet {

// Thread-safe. Functions run on the timer's thread, one after the other, with no lock held; they must not block and not destroy the timer.
class DeadlineTimer {
 public:
  using Id = uint64_t;

  DeadlineTimer();
  // Runs nothing that is not due yet; a function that is running is waited for.
  ~DeadlineTimer();
  DeadlineTimer(const DeadlineTimer&) = delete;
  DeadlineTimer& operator=(const DeadlineTimer&) = delete;

  // `when` in the past: soon.
  Id Add(Time when, std::function<void()> on_due);
  // False when it has run, is running or was never there.
  bool Remove(Id id);

 private:
  void Loop();

  std::mutex mutex_;  // guards all below
  std::condition_variable wake_;
  std::map<std::pair<Time, Id>, std::function<void()>> due_;
  std::unordered_map<Id, Time> times_;
  Id next_id_ = 1;
  Time sleeps_until_ = Time::max();
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace meshnet
