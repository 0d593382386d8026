// A process of the run as its code sees time: a clock that may jump ahead, and waiting that gives the thread to the others.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/waiting.h"
#include "event_loop.h"
#include "fiber.h"

namespace meshnet::sim {

// Stopped and continued like a process by SIGSTOP: what comes meanwhile waits, and afterwards the clock has moved on.
class ProcessTime : public Clock, public Waiting {
 public:
  // `loop` outlives everything.
  explicit ProcessTime(EventLoop& loop) : loop_(loop) {}
  ~ProcessTime() override;

  Time Now() const override { return loop_.now() + ahead_; }
  Waiting& waiting() const override { return const_cast<ProcessTime&>(*this); }

  bool WaitFor(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, Duration at_most,
               const std::function<bool()>& holds) override;
  void Notify(std::condition_variable& changed) override;
  void Sleep(Duration duration) override;
  std::unique_ptr<Background> Start(std::function<void()> work) override;

  // From here on the clock shows so much more.
  void Jump(Duration duration) { ahead_ += duration; }
  void PauseUntil(Time until) { paused_until_ = std::max(paused_until_, until); }
  bool paused() const { return loop_.now() < paused_until_; }
  // Runs `act` in this process: at `when`, or once it is continued. The id no longer names it after that, so cancelling is only thrift.
  EventLoop::Id At(Time when, std::function<void()> act);

 private:
  class Beside;
  // A fiber that waits.
  struct Parked {
    Fiber* fiber = nullptr;
    const void* condition = nullptr;
    EventLoop::Id timer;
  };
  using Serial = uint64_t;

  void Park(const void* condition, Time until);
  void Wake(Serial serial);

  EventLoop& loop_;
  Duration ahead_{0};
  Time paused_until_{};
  // Both are looked up only, never walked: their order means nothing.
  std::unordered_map<Serial, Parked> parked_;
  std::unordered_map<const void*, std::vector<Serial>> by_condition_;
  Serial next_ = 1;
};

}  // namespace meshnet::sim
