// What one worker will need, from the header and the settings alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "engine/llama/engine_settings.h"
#include "plan/memory_estimate.h"

namespace meshnet::cli {

struct MemoryNeed {
  uint64_t weight_bytes = 0;
  uint64_t hole_bytes = 0;
  uint64_t kv_bytes = 0;
  uint64_t kv_bytes_per_token = 0;
  uint64_t compute_bytes = 0;  // rough: logits, activations and attention of one micro-batch

  uint64_t total() const { return weight_bytes + hole_bytes + kv_bytes + compute_bytes; }
};

struct ShardSize {
  LayerRange range;
  uint32_t layer_count = 0;  // of the whole model
  uint32_t boundary_width = 0;
  uint32_t vocabulary_size = 0;
  uint64_t tensor_bytes = 0;  // holes included
  uint64_t hole_bytes = 0;
};
MemoryNeed NeedOf(const ShardSize& shard, const EngineSettings& settings, const plan::KvEstimate& kv);

// kOutOfMemory names needed and available bytes. `what` begins the sentence: "3 workers of NAME".
Status CheckMemory(const std::string& what, const std::vector<MemoryNeed>& needs);

}  // namespace meshnet::cli
