// Real workers of a real model as processes, and a route to them from the test's own process. For the opt-in lanes.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/system_clock.h"
#include "process/test_process.h"
#include "protocol/shard_link.h"
#include "session/route.h"

namespace meshnet::evidence {

struct RouteWish {
  std::string model;                 // a path
  std::vector<uint32_t> cuts;        // one worker more
  uint32_t layer_count = 0;
  uint32_t sessions = 8;
  uint32_t context_tokens = 512;
  uint32_t budget_tokens = 0;        // 0: all sessions at full context
  uint32_t ttl_seconds = 600;
  std::string numerics = "exact";
  std::string kv_type;               // empty: the mode's own
};

// Starts `meshnet` with these arguments.
using Starter = std::function<std::unique_ptr<process::TestProcess>(const std::vector<std::string>&)>;

// Not thread-safe, but its route is.
class RealRoute {
 public:
  // Starts the workers and waits until the route serves; the test fails when it does not. Sockets are made in `folder`.
  RealRoute(const RouteWish& wish, Starter start, const std::string& folder);
  ~RealRoute();

  Route& route() { return *route_; }
  const Clock& clock() const { return clock_; }
  size_t stage_count() const { return links_.size(); }
  // kill -9, and at once a new process at the same address.
  void KillAndRestart(size_t stage);

  ShardDescription Description(size_t stage);
  ShardStats Stats(size_t stage);
  // Resident bytes of the worker now, without the pages of its files.
  uint64_t AnonymousBytes(size_t stage);

 private:
  const Starter start_;
  SystemClock clock_;
  std::vector<std::vector<std::string>> commands_;
  std::vector<std::unique_ptr<process::TestProcess>> workers_;
  std::vector<std::unique_ptr<ShardLink>> links_;
  std::unique_ptr<Route> route_;
};

}  // namespace meshnet::evidence
