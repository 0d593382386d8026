// `meshnet worker --explain-budget`: how the four hot KV settings and the model come to sequences, cells and bytes. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cli/memory_need.h"
#include "cli/worker_flags.h"
#include "engine/llama/engine_settings.h"

namespace meshnet::cli {

struct BudgetQuestion {
  std::string what;  // "layers [0,15) of SmolLM2 135M"
  WorkerSettings wish;
  EngineSettings engine;  // what the wish came to for this shard
  MemoryNeed need;
  std::optional<uint64_t> available_bytes;
};

// Lines for people, the last one the verdict.
std::string ExplainBudget(const BudgetQuestion& question);

}  // namespace meshnet::cli
