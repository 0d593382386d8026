// A thread pool that grows with its work up to a bound and shrinks when idle. Jobs may block; each gets a thread of its own while there are any
// left, and waits in order otherwise. Thread-safe.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <list>
#include <mutex>
#include <thread>

namespace meshnet::gateway {

class GrowingThreads {
 public:
  explicit GrowingThreads(size_t threads_max);
  ~GrowingThreads();  // as Stop

  enum class Submitted {
    kStarted,  // a thread has it, or will at once
    kWaiting,  // all threads are busy
    kStopped,  // refused, the job was dropped
  };
  Submitted Submit(std::function<void()> job);

  // Jobs that no thread has yet.
  size_t waiting() const;

  // Runs what was submitted, ends the threads and joins them. No job may call it.
  void Stop();

 private:
  void Run(std::list<std::thread>::iterator self);
  bool AddThread();

  const size_t threads_max_;
  mutable std::mutex mutex_;
  std::condition_variable work_;
  std::deque<std::function<void()>> jobs_;
  std::list<std::thread> threads_;
  std::list<std::thread> ended_;  // joined by the next caller that passes by
  size_t idle_ = 0;
  bool stopping_ = false;
};

}  // namespace meshnet::gateway
