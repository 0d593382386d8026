// Bytes a shard will need, from the header and the settings alone: before anything is loaded. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "base/ids.h"
#include "base/status.h"
#include "gguf/model_shape.h"

namespace meshnet::plan {

struct KvSettings {
  uint32_t sessions = 1;
  uint32_t context_tokens = 4096;  // of one session
  uint32_t budget_tokens = 4096;
  uint32_t ubatch_tokens = 128;    // sliding-window caches are padded by it
  std::string type_k = "f16";
  std::string type_v = "f16";
};

struct KvEstimate {
  uint64_t bytes_per_token = 0;    // of full-attention layers
  uint64_t bytes = 0;              // allocated for these settings, windows included; recurrent state is not counted
  uint64_t cells = 0;              // that one row may attend to; 0 without attention
  uint32_t heads = 0;              // the most of one layer with attention
};

// As llama.cpp v0.5.0 allocates (src/llama-kv-cache*.cpp): partitioned when sessions * context <= budget, else unified.
Result<KvEstimate> EstimateKv(const gguf::ModelShape& shape, LayerRange range, const KvSettings& settings);

// Bytes of one row of `elements` values in a ggml type ("f16", "q8_0", …); kBadConfiguration for an unknown type or a partial block.
Result<uint64_t> RowBytes(const std::string& type, uint64_t elements);

}  // namespace meshnet::plan
