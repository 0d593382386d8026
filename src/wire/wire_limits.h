// The bounds of every message of the shard protocol. Both ends use them, and tests name them. Sampling parameters: protocol/sampling_limits.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace meshnet {

// One step beside its frame: token ids and sampling parameters.
inline constexpr uint64_t kStepOverheadBytesMax = 2u << 20;
// Several steps or answers share one message only up to this size; a larger one travels alone.
inline constexpr uint64_t kCoalescedBytesMax = 1u << 20;
// No step is larger, whatever the shard's width.
inline constexpr uint64_t kFrameBytesCeiling = 128u << 20;
// One answer: 128 rows of logits over a large vocabulary fit several times.
inline constexpr uint64_t kAnswerBytesMax = 512u << 20;
inline constexpr size_t kMetadataBytesMax = 16u << 10;

inline constexpr size_t kStepsPerMessageMax = 1024;
inline constexpr size_t kCacheSaltBytesMax = 64;
inline constexpr size_t kMessageTextMax = 512;   // a refusal's sentence
inline constexpr size_t kNameBytesMax = 4096;    // strings of Describe
inline constexpr size_t kStatsSessionsMax = 4096;

}  // namespace meshnet
