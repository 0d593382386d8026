// What a shard is and does, as it publishes it: identity, memory class, limits, numerics. Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"

namespace meshnet {

inline constexpr uint32_t kProtocolMajor = 1;
inline constexpr uint32_t kProtocolMinor = 0;

// How much of a session's KV can be cut off (docs/kv-contract.md, Positions).
enum class TruncationClass {
  kFull,    // any length
  kWindow,  // 0, past length, or while the window is intact
  kWhole,   // recurrent and hybrid: 0 or past length
};
const char* Name(TruncationClass truncation_class);  // "full", "window", "whole"

enum class NumericsMode {
  kFast,   // bit-equal at equal step shapes
  kExact,  // results do not depend on threads, chunks, neighbours or replay
};
const char* Name(NumericsMode mode);  // "fast", "exact"

// What decides the last bits of a result (docs/numerics.md).
struct NumericsFingerprint {
  NumericsMode mode = NumericsMode::kFast;
  std::string engine_tree;      // git tree of the llama.cpp it was built from
  std::string backend;          // "CPU", "CUDA", …
  std::string cpu_features;     // of the CPU backend, sorted
  bool flash_attention = true;
  bool repack = true;
  std::string kv_type_k;        // ggml type names
  std::string kv_type_v;
  uint32_t threads = 0;
  uint32_t context_tokens = 0;  // per sequence: picks long-RoPE factors, so it changes meaning

  friend bool operator==(const NumericsFingerprint&, const NumericsFingerprint&) = default;
};

enum class ShardState { kStarting, kServing, kDraining, kPoisoned };
const char* Name(ShardState state);

struct ShardLimits {
  uint32_t sessions_max = 0;
  uint32_t context_tokens = 0;   // of one session
  uint32_t budget_tokens = 0;    // sum of reservations
  uint64_t ttl_seconds = 0;
  uint32_t chunk_rows_max = 0;   // tokens of one step
  uint32_t window_steps = 0;     // unacknowledged steps of a session
  uint64_t frame_bytes_max = 0;
};

struct ShardDescription {
  uint32_t protocol_major = kProtocolMajor;
  uint32_t protocol_minor = kProtocolMinor;
  std::string engine_build;         // meshnet version and llama.cpp tree
  Incarnation incarnation;
  ShardState state = ShardState::kStarting;
  uint64_t process_id = 0;

  Sha256Digest model_root;
  Sha256Digest range_digest;
  std::string model_name;           // for people
  std::string architecture;
  uint32_t layer_count = 0;         // trunk layers of the whole model
  LayerRange range;
  uint32_t boundary_width = 0;      // f32 values of one hidden-state row, in and out
  uint32_t vocabulary_size = 0;     // of the whole model
  TruncationClass truncation_class = TruncationClass::kFull;
  uint32_t window_tokens = 0;       // sliding window, 0 when none

  ShardLimits limits;
  NumericsFingerprint numerics;
  uint64_t weight_bytes = 0;
  uint64_t hole_bytes = 0;          // memory of tensors this stage never reads
  uint64_t kv_bytes_per_token = 0;
  uint64_t kv_bytes_predicted = 0;  // from the header and settings alone
  uint64_t kv_bytes_allocated = 0;  // as the engine reports
  uint64_t compute_bytes_allocated = 0;

  bool is_head() const { return range.begin == 0; }
  bool is_tail() const { return range.end == layer_count; }
};

struct ShardSessionStats {
  std::string id_prefix;            // 8 hex digits
  Epoch epoch;
  PastLen past_len;
  uint32_t reserved_tokens = 0;
  bool busy = false;
  double idle_seconds = 0;
};

struct ShardStats {
  ShardState state = ShardState::kStarting;
  Incarnation incarnation;
  uint32_t sessions_live = 0;
  uint32_t sessions_busy = 0;
  uint64_t kv_tokens_reserved = 0;
  uint64_t kv_tokens_used = 0;
  uint32_t sequences_free = 0;
  uint32_t steps_queued = 0;
  uint64_t evictions_ttl = 0;
  uint64_t evictions_lru = 0;
  uint64_t evictions_superseded = 0;
  uint64_t sessions_lost = 0;
  uint64_t replays = 0;
  uint64_t steps_committed = 0;
  uint64_t tokens_committed = 0;
  uint64_t engine_calls = 0;
  std::vector<std::pair<std::string, uint64_t>> refusals;  // by Name(Reason), sorted
  std::vector<ShardSessionStats> sessions;
};

}  // namespace meshnet
