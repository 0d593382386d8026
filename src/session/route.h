// The ordered stages that cover a model exactly once, and the check that they do.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "protocol/describe.h"
#include "protocol/shard_link.h"

namespace meshnet {

// One stage of a checked route; `link` is owned by whoever made it and outlives the route.
struct Stage {
  ShardLink* link = nullptr;
  ShardDescription description;
};

// Pure. Orders the descriptions by range and refuses (kRefused, naming both sides) unless they cover [0, layer_count) exactly once with equal
// model root, layer count, boundary width, protocol major and minor, engine tree, and the numerics that change meaning (mode, KV types,
// flash attention, per-sequence context). Differences that only move last bits (threads, CPU features, backend) come back as warnings.
struct RouteCheck {
  Status status;
  std::vector<size_t> order;          // order[i] = index into the input of stage i
  std::vector<std::string> warnings;
};
RouteCheck CheckRoute(const std::vector<ShardDescription>& descriptions);

// What the whole route can do: the smallest of its stages' limits.
struct RouteLimits {
  uint32_t context_tokens = 0;
  uint32_t sessions_max = 0;
  uint32_t budget_tokens = 0;
  uint32_t chunk_rows_max = 0;
  TruncationClass truncation_class = TruncationClass::kFull;  // the strictest
};

enum class RouteState { kConnecting, kServing, kBroken, kDraining, kRefused };
const char* Name(RouteState state);

// The live route over fixed links. Thread-safe. A stage that is lost (dead, unreachable, another incarnation) makes it kBroken until all
// stages answer Describe again and pass the check; every repair starts a new generation.
class Route {
 public:
  // `links` in any order; they outlive the route.
  Route(std::vector<ShardLink*> links, const Clock& clock);
  ~Route();

  // Asks every stage once (each at most `timeout`) and checks. kPeerUnreachable names the stage that did not answer.
  Status Connect(Duration timeout);

  struct View {
    std::vector<Stage> stages;  // ordered by range
    RouteLimits limits;
    uint64_t generation = 0;    // grows with each repair
  };
  // The current view; nothing while the route is not serving.
  std::shared_ptr<const View> view() const;
  RouteState state() const;
  // Why it does not serve: stage, range, cause. Empty while it serves.
  std::string trouble() const;
  std::vector<std::string> warnings() const;
  uint64_t generation() const;

  // A caller saw a stage of `generation` fail; a no-op when that generation is already past. Wakes the repair.
  void ReportLost(uint64_t generation, const std::string& cause);
  // Tries to connect again until `deadline`; returns as soon as a generation newer than `generation` serves. Many callers may wait at once.
  // `cancelled` (may be null) is asked at least every 50 ms.
  Status WaitForRepair(uint64_t generation, Time deadline, const std::function<bool()>& cancelled);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace meshnet
