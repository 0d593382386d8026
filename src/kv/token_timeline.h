// The tokens of one session with the digest of every prefix: those committed, then those of queued steps. Digests of earlier lengths come
// from a remembered hasher at most kCheckpointTokens back, so that neither a re-prefill nor a failure hashes the whole log again.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "protocol/prefix_digest.h"

namespace meshnet::kv {

class TokenTimeline {
 public:
  static constexpr uint32_t kCheckpointTokens = 256;

  explicit TokenTimeline(std::string_view cache_salt);

  std::span<const Token> committed() const { return committed_; }
  PastLen past_len() const { return PastLen(static_cast<uint32_t>(committed_.size())); }
  PrefixDigest digest() const { return digest_; }
  // Committed and queued: where the next step starts.
  PastLen projected_len() const { return PastLen(base_ + static_cast<uint32_t>(queued_.size())); }
  uint32_t queued_tokens() const { return static_cast<uint32_t>(queued_.size()); }
  // Of the committed prefix `length` <= past_len().
  PrefixDigest DigestAt(PastLen length) const;

  // Queues tokens at `start`, which is projected_len(), or less when nothing is queued: then committing them truncates first.
  // Returns the digest of everything up to their end.
  PrefixDigest Queue(PastLen start, std::span<const Token> tokens);
  // Forgets the last `count` queued tokens.
  void DropQueued(uint32_t count);
  // The first `count` queued tokens become committed; `digest` is what Queue returned for them.
  void Commit(uint32_t count, const PrefixDigest& digest);
  // Cuts the committed tokens to `keep`. Nothing may be queued.
  void Truncate(PastLen keep);

 private:
  void Append(std::span<const Token> tokens);
  void Rewind(uint32_t length, uint32_t trusted);

  std::vector<Token> committed_;
  std::vector<Token> queued_;
  uint32_t base_ = 0;  // where queued_ begins: the end of committed_, or less when the first queued step truncates
  PrefixDigest digest_;
  PrefixHasher hasher_;                     // after [0, projected_len)
  std::vector<PrefixHasher> checkpoints_;   // [i]: after i * kCheckpointTokens tokens of the same line
};

}  // namespace meshnet::kv
