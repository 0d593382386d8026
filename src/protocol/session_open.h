// Open and Release of a session on one shard (docs/protocol.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/ids.h"
#include "protocol/step.h"

namespace meshnet {

struct OpenRequest {
  SessionKey key;
  Sha256Digest model_root;          // what the caller believes it talks to
  LayerRange range;
  uint32_t reserve_tokens = 0;      // 0: the whole per-session context
  std::string cache_salt;           // <= 64 bytes; enters every digest

  friend bool operator==(const OpenRequest&, const OpenRequest&) = default;
};

struct OpenReply {
  Incarnation incarnation;
  PastLen past_len;
  PrefixDigest digest;
  StepSeq next_step;                // 1 for a new session
  Credit credit;
  uint32_t reserved_tokens = 0;
  std::optional<Epoch> superseded;  // the older epoch whose KV this Open removed
};

enum class ReleaseOutcome { kReleased, kNotFound, kEpochStale, kDeferred };
const char* Name(ReleaseOutcome outcome);

}  // namespace meshnet
