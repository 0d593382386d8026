#include "process_time.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace meshnet::sim {
namespace {

// Nothing in a run waits longer, so that sums of times stay far from overflow.
constexpr Duration kWaitMax = std::chrono::hours(24);

}  // namespace

class ProcessTime::Beside : public Waiting::Background {
 public:
  Beside(ProcessTime& process, std::function<void()> work) : process_(process), state_(std::make_shared<State>()) {
    state_->fiber = std::make_unique<Fiber>([&process, state = state_.get(), work = std::move(work)] {
      work();
      state->ended = true;
      process.Notify(state->changed);
    });
    process.At(process.loop_.now(), [state = state_] { state->fiber->Resume(); });
  }
  ~Beside() override {
    std::unique_lock lock(state_->mutex);
    while (!state_->ended) process_.WaitFor(state_->changed, lock, kWaitMax, [this] { return state_->ended; });
  }

 private:
  struct State {
    std::unique_ptr<Fiber> fiber;
    std::mutex mutex;
    std::condition_variable changed;
    bool ended = false;
  };
  ProcessTime& process_;
  std::shared_ptr<State> state_;  // shared with the event that begins it
};

ProcessTime::~ProcessTime() { MESHNET_CHECK(parked_.empty()); }

EventLoop::Id ProcessTime::At(Time when, std::function<void()> act) {
  return loop_.At(when, [this, act = std::move(act)]() mutable {
    if (paused()) {
      At(paused_until_, std::move(act));
    } else {
      act();
    }
  });
}

void ProcessTime::Park(const void* condition, Time until) {
  Fiber* fiber = Fiber::Current();
  MESHNET_CHECK(fiber != nullptr);
  const Serial serial = next_++;
  if (condition != nullptr) by_condition_[condition].push_back(serial);
  parked_[serial] = {fiber, condition, At(until, [this, serial] { Wake(serial); })};
  fiber->Yield();
}

// Outside of fibers. Whatever wakes a fiber first counts; what comes later finds nobody.
void ProcessTime::Wake(Serial serial) {
  auto parked = parked_.extract(serial);
  if (parked.empty()) return;
  const Parked& waiter = parked.mapped();
  if (auto found = by_condition_.find(waiter.condition); found != by_condition_.end()) {
    std::erase(found->second, serial);
    if (found->second.empty()) by_condition_.erase(found);
  }
  loop_.Cancel(waiter.timer);
  waiter.fiber->Resume();
}

bool ProcessTime::WaitFor(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, Duration at_most,
                          const std::function<bool()>& holds) {
  const Time deadline = loop_.now() + std::clamp<Duration>(at_most, Duration(0), kWaitMax);
  while (!holds()) {
    if (loop_.now() >= deadline) return false;
    lock.unlock();
    Park(&changed, deadline);
    lock.lock();
  }
  return true;
}

void ProcessTime::Notify(std::condition_variable& changed) {
  auto waiters = by_condition_.extract(&changed);
  if (waiters.empty()) return;
  for (Serial serial : waiters.mapped()) At(loop_.now(), [this, serial] { Wake(serial); });
}

void ProcessTime::Sleep(Duration duration) { Park(nullptr, loop_.now() + std::clamp<Duration>(duration, Duration(0), kWaitMax)); }

std::unique_ptr<Waiting::Background> ProcessTime::Start(std::function<void()> work) { return std::make_unique<Beside>(*this, std::move(work)); }

}  // namespace meshnet::sim
