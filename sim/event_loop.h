// Virtual time: what is to happen, in the order of when, and of when it was asked for among equals. One thread, no clock of the machine.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "base/check.h"
#include "base/clock.h"

namespace meshnet::sim {

class EventLoop {
 public:
  // Names one event; later ones are larger.
  using Id = std::pair<Time, uint64_t>;

  Time now() const { return now_; }
  uint64_t steps() const { return steps_; }

  Id At(Time when, std::function<void()> act) {
    const Id id{std::max(when, now_), next_++};
    events_.emplace(id, std::move(act));
    return id;
  }
  Id After(Duration delay, std::function<void()> act) { return At(now_ + delay, std::move(act)); }
  // Harmless when it has happened.
  void Cancel(const Id& id) { events_.erase(id); }

  bool empty() const { return events_.empty(); }
  void Step() {
    MESHNET_CHECK(!events_.empty());
    auto first = events_.extract(events_.begin());
    now_ = first.key().first;
    ++steps_;
    first.mapped()();
  }

 private:
  std::map<Id, std::function<void()>> events_;
  Time now_{std::chrono::hours(1)};
  uint64_t next_ = 1;
  uint64_t steps_ = 0;
};

}  // namespace meshnet::sim
