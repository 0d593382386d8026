// Commands of many threads to the one that owns kv and engine. Bounded by count and bytes: senders ask for room before they read more.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace meshnet {

struct MailboxLimits {
  size_t count_max = 65536;
  uint64_t bytes_max = 256u << 20;
};

// Thread-safe; one thread takes.
template <typename Command>
class Mailbox {
 public:
  explicit Mailbox(MailboxLimits limits) : limits_(limits) {}

  // False, and `command` untouched, once the mailbox is closed. Otherwise always taken, so that one large message may pass the bound: who sends
  // many asks `WhenRoom` first. `bytes`: what it holds.
  [[nodiscard]] bool Put(Command& command, uint64_t bytes) {
    {
      std::lock_guard lock(mutex_);
      if (closed_) return false;
      commands_.push_back(std::move(command));
      bytes_ += bytes;
    }
    wake_.notify_one();
    return true;
  }

  // Runs `then` now when there is room, else on the taking thread once there is.
  void WhenRoom(std::function<void()> then) {
    {
      std::lock_guard lock(mutex_);
      if (!has_room() && !closed_) {
        waiting_.push_back(std::move(then));
        return;
      }
    }
    then();
  }

  // All commands in their order; empty after `timeout` (nothing: no limit) or a Wake.
  std::vector<Command> TakeAll(std::optional<Duration> timeout) {
    std::vector<Command> taken;
    std::vector<std::function<void()>> ready;
    {
      std::unique_lock lock(mutex_);
      auto something = [this] { return !commands_.empty() || woken_; };
      if (!timeout) {
        wake_.wait(lock, something);
      } else if (*timeout > Duration::zero()) {
        wake_.wait_for(lock, *timeout, something);
      }
      woken_ = false;
      taken.swap(commands_);
      bytes_ = 0;
      ready.swap(waiting_);
    }
    for (std::function<void()>& then : ready) then();
    return taken;
  }

  // Nothing is put any more; what is there stays to be taken.
  void Close() {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }

  // Ends a TakeAll that waits.
  void Wake() {
    {
      std::lock_guard lock(mutex_);
      woken_ = true;
    }
    wake_.notify_one();
  }

 private:
  bool has_room() const { return commands_.size() < limits_.count_max && bytes_ < limits_.bytes_max; }

  const MailboxLimits limits_;
  std::mutex mutex_;  // guards all below
  std::condition_variable wake_;
  std::vector<Command> commands_;
  std::vector<std::function<void()>> waiting_;  // at most one of each stream
  uint64_t bytes_ = 0;
  bool woken_ = false;
  bool closed_ = false;
};

}  // namespace meshnet
