// How a worker wants its shard run; the flags keep llama-server's names.
#pragma once

#include <cstdint>
#include <string>

#include "protocol/describe.h"

namespace meshnet {

inline constexpr uint32_t kChunkRowsMax = 2048;  // of -ub: a frame of a wide model holds no more

struct EngineOptions {
  std::string shard_path;
  NumericsMode numerics = NumericsMode::kFast;
  uint32_t threads = 0;              // -t; 0: all physical cores this process may use
  uint32_t sessions_max = 8;
  uint32_t context_tokens = 4096;    // -c: of one session
  uint32_t budget_tokens = 32768;
  uint32_t ubatch_tokens = 128;      // -ub: rows of one chunk
  std::string kv_type_k;             // -ctk; empty: f16 in fast, bf16 in exact
  std::string kv_type_v;             // -ctv
  bool flash_attention = true;       // -fa on|off; never auto
  int32_t gpu_layers = 0;            // -ngl
  std::string device;                // --device, comma separated; empty: llama.cpp's default
};

}  // namespace meshnet
