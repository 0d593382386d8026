// Decides what EngineOptions mean for one shard: the numbers llama.cpp gets. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "engine/engine_options.h"
#include "plan/memory_estimate.h"

namespace meshnet {

// In mode exact always n_ubatch: a ring of another size turns elsewhere, and then its cells are summed in another order.
inline constexpr uint32_t kExactUbatchRows = 128;
inline constexpr uint32_t kSessionsMax = 256;     // llama.cpp's LLAMA_MAX_SEQ
inline constexpr uint32_t kLogitRowsMax = 128;    // rows of logits one call may ask for: bounds rows * vocabulary on the tail

struct EngineSettings {
  NumericsMode numerics = NumericsMode::kFast;
  std::string kv_type_k;
  std::string kv_type_v;
  bool flash_attention = true;
  bool repack = true;             // llama.cpp's use_extra_bufts
  uint32_t threads = 1;
  uint32_t sessions = 1;
  bool partitioned = true;        // one stream of cells per sequence; else one pool for all
  uint32_t cells = 0;             // n_ctx
  uint32_t chunk_rows = 0;        // of one step, which is one micro-batch
  uint32_t ubatch_rows = 0;       // n_ubatch, by which llama.cpp sizes the rings of sliding windows
  uint32_t batch_tokens = 0;      // n_batch
  uint32_t output_rows = 0;       // n_outputs_max: rows that one call may flag
  int32_t gpu_layers = 0;
  std::string device;
};

// Rows that one call may flag: all of it where hidden states leave, few on a tail, where each costs a vocabulary of floats.
enum class OutputRows { kAll, kFew };

// `physical_cores` is what threads == 0 stands for. kBadConfiguration names the flag; kRefused: not covered in mode exact.
Result<EngineSettings> ResolveSettings(const EngineOptions& options, OutputRows output, uint32_t physical_cores);

// The same numbers as plan/memory_estimate.h takes them, for a prediction before anything is loaded.
plan::KvSettings KvSettingsOf(const EngineSettings& settings);

}  // namespace meshnet
