// The flags that say how a shard is run: shared by worker, serve, run, verify and bench, and passed on to the processes they start.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "cli/arguments.h"
#include "engine/engine_options.h"
#include "engine/llama/engine_settings.h"
#include "worker/shard_worker.h"

namespace meshnet::cli {

// What the flags and the environment came to.
struct WorkerSettings {
  EngineOptions engine;  // shard_path empty; limits equal to hot_kv's
  HotKvSettings hot_kv;

  // What they come to for the shard of `range`, before anything is loaded: a head takes smaller chunks than other stages.
  Result<EngineSettings> Resolved(LayerRange range, uint32_t layer_count) const;
  // The flags that give another `meshnet worker` exactly these settings.
  std::vector<std::string> ToArguments() const;
};

// What a verb wants where neither flag nor environment says anything.
struct WorkerDefaults {
  uint32_t sessions_max = 8;
  uint32_t context_tokens = 4096;  // or the model's training context, if that is smaller and known
  uint32_t budget_tokens = 32768;  // 0: as many as all sessions at full context need
  NumericsMode numerics = NumericsMode::kFast;
};

class WorkerFlags {
 public:
  void AddTo(Arguments& arguments);
  // kBadConfiguration names the variable or flag. `training_context` 0: unknown.
  Result<WorkerSettings> Resolve(const Arguments& arguments, const WorkerDefaults& defaults, uint32_t training_context) const;

 private:
  Result<HotKvSettings> ResolveHotKv(const Arguments& arguments, const WorkerDefaults& defaults, uint32_t training_context) const;

  uint32_t threads_ = 0;
  uint32_t ubatch_ = 128;
  std::string kv_type_k_, kv_type_v_;
  std::string flash_attention_ = "on";
  std::string numerics_;
  std::string device_;
  int32_t gpu_layers_ = 0;
  std::string context_;  // -c, --hot-kv-context-tokens
  std::string sessions_, budget_, ttl_;
};

}  // namespace meshnet::cli
