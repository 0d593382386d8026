// The workers of one model on this machine and the route over them: what serve, run, verify and bench stand on.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cli/model_preparation.h"
#include "cli/supervisor.h"
#include "cli/worker_flags.h"
#include "protocol/shard_link.h"
#include "session/route.h"

namespace meshnet::cli {

// A split that was found legal and small enough, before any shard is written.
struct ClusterPlan {
  std::vector<LayerRange> ranges;
  std::vector<MemoryNeed> needs;  // per range
  WorkerSettings settings;
};
// `resident_bytes`: what this process itself will load beside the workers. kRefused, kBadConfiguration, kOutOfMemory as ChooseSplit and CheckMemory.
Result<ClusterPlan> PlanCluster(const OpenedModel& model, const SplitWish& wish, const WorkerSettings& settings, uint64_t resident_bytes);

class EmbeddedCluster {
 public:
  // Starts one worker per range on `files` (EnsureShardFiles); returns before they are ready. Links and route exist from then on.
  static Result<std::unique_ptr<EmbeddedCluster>> Launch(const ClusterPlan& plan, ShardFiles files, SupervisorOptions options, const Clock& clock);
  // Ends everything at once, unless Stop did.
  ~EmbeddedCluster();

  // Until every worker serves and the route is checked.
  Status WaitReady(const std::function<bool()>& cancelled);

  // Takes route and links away (nobody may use them any more), then asks the workers to end. Returns at once.
  void RequestStop(StopKind kind);

  Route& route() { return *route_; }
  std::vector<ShardLink*> links() const;
  Supervisor& supervisor() { return *supervisor_; }

 private:
  EmbeddedCluster(PrivateFolder folder, ShardFiles files, const Clock& clock);
  class HangWatch;

  PrivateFolder folder_;  // sockets and turn lock
  ShardFiles files_;
  const Clock& clock_;
  Duration silence_limit_{0};
  std::unique_ptr<Supervisor> supervisor_;
  std::vector<std::unique_ptr<ShardLink>> links_;
  std::unique_ptr<Route> route_;
  std::unique_ptr<HangWatch> hang_watch_;
};

}  // namespace meshnet::cli
