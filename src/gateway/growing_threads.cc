#include "gateway/growing_threads.h"

#include <chrono>
#include <system_error>
#include <utility>

namespace meshnet::gateway {
namespace {
constexpr std::chrono::seconds kIdleLimit(10);
}  // namespace

GrowingThreads::GrowingThreads(size_t threads_max) : threads_max_(threads_max) {}

GrowingThreads::~GrowingThreads() { Stop(); }

GrowingThreads::Submitted GrowingThreads::Submit(std::function<void()> job) {
  std::list<std::thread> ended;
  Submitted result = Submitted::kStarted;
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return Submitted::kStopped;
    jobs_.push_back(std::move(job));
    ended.swap(ended_);
    if (idle_ < jobs_.size() && !AddThread()) {
      result = Submitted::kWaiting;
      if (threads_.empty()) {  // the system gives no thread at all: nobody would ever run it
        jobs_.pop_back();
        result = Submitted::kStopped;
      }
    }
  }
  work_.notify_one();
  for (std::thread& thread : ended) thread.join();
  return result;
}

size_t GrowingThreads::waiting() const {
  std::lock_guard lock(mutex_);
  return jobs_.size();
}

bool GrowingThreads::AddThread() {
  if (threads_.size() >= threads_max_) return false;
  const auto self = threads_.emplace(threads_.end());
  try {
    *self = std::thread([this, self] { Run(self); });
  } catch (const std::system_error&) {
    threads_.erase(self);
    return false;
  }
  return true;
}

void GrowingThreads::Run(std::list<std::thread>::iterator self) {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (jobs_.empty()) {
      if (stopping_) return;
      ++idle_;
      const bool woken = work_.wait_for(lock, kIdleLimit, [&] { return stopping_ || !jobs_.empty(); });
      --idle_;
      if (woken) continue;
      ended_.splice(ended_.end(), threads_, self);
      return;
    }
    std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    job = nullptr;  // what it holds goes before the next one is waited for
    lock.lock();
  }
}

void GrowingThreads::Stop() {
  std::list<std::thread> threads;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_.notify_all();
  for (;;) {
    {
      std::lock_guard lock(mutex_);
      if (threads_.empty() && ended_.empty()) return;
      // A running thread holds its own iterator only to leave by itself, which `stopping_` no longer lets it do.
      threads.splice(threads.end(), ended_);
      threads.splice(threads.end(), threads_);
    }
    for (std::thread& thread : threads) thread.join();
    threads.clear();
  }
}

}  // namespace meshnet::gateway
