// Code with a stack of its own on the one thread of a run: where it would block it gives the thread back, and goes on there later. This lets
// the session driver, the pool and the route run as they are, without threads.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <functional>

namespace meshnet::sim {

class Fiber {
 public:
  explicit Fiber(std::function<void()> work);
  ~Fiber();  // must be done, or never have begun
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // From outside of fibers: runs until the work yields or ends.
  void Resume();
  bool done() const { return done_; }

  // The fiber that runs now; null outside.
  static Fiber* Current();
  // From inside: back to whoever resumed.
  void Yield();

 private:
  static void Enter();

  std::function<void()> work_;
  void* stack_ = nullptr;
  ucontext_t own_{};
  ucontext_t outside_{};
  bool begun_ = false;
  bool done_ = false;
};

}  // namespace meshnet::sim
