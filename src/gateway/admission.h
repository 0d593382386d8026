// Counts the requests that work on the gateway, and closes the door on new ones: for good in a drain, or while there are too many. Thread-safe.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>

#include "base/clock.h"

namespace meshnet::gateway {

class Admission {
 public:
  explicit Admission(size_t requests_max) : requests_max_(requests_max) {}

  // Its owner is inside; destroying it leaves. Must not outlive the Admission.
  class Pass {
   public:
    explicit Pass(Admission& admission) : admission_(admission) {}
    ~Pass() { admission_.Leave(); }
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;

   private:
    Admission& admission_;
  };
  // Null when too many are inside. Shared because a reply's stream, a std::function, carries it.
  std::shared_ptr<Pass> Enter();

  void BeginDrain();
  bool draining() const;
  // True: nobody is inside. Waits at most `limit`.
  bool WaitEmpty(Duration limit);

 private:
  void Leave();

  const size_t requests_max_;
  mutable std::mutex mutex_;
  std::condition_variable empty_;
  size_t inside_ = 0;
  bool draining_ = false;
};

}  // namespace meshnet::gateway
