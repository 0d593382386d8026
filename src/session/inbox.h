// Where the callbacks of links leave their answers for the one thread that drives a session.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "base/waiting.h"

namespace meshnet {

// Push from any thread, Pop from one. Holds at most one answer per call that was made, so it is bounded by them.
template <typename T>
class Inbox {
 public:
  // `waiting` outlives the inbox.
  explicit Inbox(Waiting& waiting) : waiting_(waiting) {}

  void Push(T item) {
    {
      std::lock_guard lock(mutex_);
      items_.push_back(std::move(item));
    }
    // After the unlock: the reader must not wake only to wait for the mutex.
    waiting_.Notify(arrived_);
  }

  // The reader looks up from a wait that brought nothing: it has something else to see. Any thread.
  void Wake() {
    {
      std::lock_guard lock(mutex_);
      woken_ = true;
    }
    waiting_.Notify(arrived_);
  }

  // The oldest item; nothing when none came within `patience` or before a Wake.
  std::optional<T> Pop(Duration patience) {
    std::unique_lock lock(mutex_);
    if (items_.empty() && patience > Duration::zero()) {
      waiting_.WaitFor(arrived_, lock, patience, [this] { return !items_.empty() || woken_; });
      woken_ = false;
    }
    if (items_.empty()) return std::nullopt;
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    return item;
  }

 private:
  Waiting& waiting_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<T> items_;  // guarded by mutex_, like the next one
  bool woken_ = false;
};

}  // namespace meshnet
