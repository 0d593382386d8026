#include "wire/deadline_timer.h"

#include <utility>

namespace meshnet {

DeadlineTimer::DeadlineTimer() : thread_([this] { Loop(); }) {}

DeadlineTimer::~DeadlineTimer() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

DeadlineTimer::Id DeadlineTimer::Add(Time when, std::function<void()> on_due) {
  bool wakes;
  Id id;
  {
    std::lock_guard lock(mutex_);
    id = next_id_++;
    times_.emplace(id, when);
    due_.emplace(std::pair(when, id), std::move(on_due));
    wakes = when < sleeps_until_;
    if (wakes) sleeps_until_ = when;
  }
  // This runs once per step. Entries are mostly removed before their time, so the thread sleeps on towards one that may be gone by then: it
  // need not know of a later one.
  if (wakes) wake_.notify_one();
  return id;
}

bool DeadlineTimer::Remove(Id id) {
  std::function<void()> dropped;  // destroyed after the lock
  std::lock_guard lock(mutex_);
  auto time = times_.find(id);
  if (time == times_.end()) return false;
  auto entry = due_.find(std::pair(time->second, id));
  dropped = std::move(entry->second);
  due_.erase(entry);
  times_.erase(time);
  return true;
}

void DeadlineTimer::Loop() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (due_.empty()) {
      sleeps_until_ = Time::max();
      wake_.wait(lock);
      continue;
    }
    auto first = due_.begin();
    if (const Time when = first->first.first; std::chrono::steady_clock::now() < when) {
      sleeps_until_ = when;
      wake_.wait_until(lock, when);
      continue;
    }
    std::function<void()> on_due = std::move(first->second);
    times_.erase(first->first.second);
    due_.erase(first);
    lock.unlock();
    on_due();
    on_due = nullptr;
    lock.lock();
  }
}

}  // namespace meshnet
