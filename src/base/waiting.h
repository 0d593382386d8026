// How code waits for others. Threads wait on condition variables; the simulation runs the same code on fibers of one thread, in virtual time.
// It is reached through a Clock, since whoever has a time of its own cannot wait by the machine's.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>

#include "base/clock.h"

namespace meshnet {

class Waiting {
 public:
  // Work that runs beside its owner; destroying it waits for the work's end.
  class Background {
   public:
    virtual ~Background() = default;
  };

  virtual ~Waiting() = default;

  // Waits until `holds`, asked under `lock` at first and after each Notify, or for `at_most`; true when it holds. As with any condition variable
  // the lock is not held meanwhile. No other lock may be held that those who change things want.
  virtual bool WaitFor(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, Duration at_most,
                       const std::function<bool()>& holds) = 0;
  // Something changed that a waiter of `changed` looks at.
  virtual void Notify(std::condition_variable& changed) = 0;
  virtual void Sleep(Duration duration) = 0;
  virtual std::unique_ptr<Background> Start(std::function<void()> work) = 0;
};

}  // namespace meshnet
