// What one session is: its token ids, how far each stage holds them, and where the chunks of its prefills ended. Enough to build it again.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "protocol/prefix_digest.h"

namespace meshnet {

// What a stage committed, as far as its replies told.
struct StageHeld {
  PastLen past;    // tokens it holds
  PastLen agreed;  // how many of them, from the first, are the journal's
  friend bool operator==(const StageHeld&, const StageHeld&) = default;
};

// Plain data; not thread-safe.
class Journal {
 public:
  explicit Journal(std::string cache_salt);

  std::span<const Token> tokens() const { return tokens_; }
  PastLen length() const { return PastLen(static_cast<uint32_t>(tokens_.size())); }

  // The journal becomes `tokens`; what stages hold stays known as far as old and new agree.
  void Rewrite(std::span<const Token> tokens);
  void Append(std::span<const Token> tokens);
  // Keeps the first `keep` tokens.
  void Truncate(PastLen keep);

  // The session was opened anew: `stage_count` stages, none of which holds anything.
  void ForgetStages(size_t stage_count);
  // The stage committed exactly the first `past` tokens.
  void Commit(size_t stage, PastLen past);
  // The stage holds `past` tokens of which only `agreed` are known to be the journal's.
  void Correct(size_t stage, StageHeld held);
  const std::vector<StageHeld>& stages() const { return held_; }
  // Held by every stage; 0 without stages.
  PastLen agreed() const;

  // Of the first `n` tokens. Cheap when `n` grows from call to call.
  PrefixDigest DigestAt(PastLen n);

  // A prefill chunk ended at `end`: in mode `fast` results depend on chunk shapes, so a replay cuts where the first run did.
  void MarkBoundary(PastLen end);
  // Sorted, without doubles.
  std::span<const PastLen> boundaries() const { return boundaries_; }

 private:
  std::string cache_salt_;
  std::vector<Token> tokens_;
  std::vector<StageHeld> held_;
  std::vector<PastLen> boundaries_;
  PrefixHasher hasher_;                                    // of the first `hashed_` tokens
  PastLen hashed_;
  std::optional<std::pair<PastLen, PrefixDigest>> last_;   // the newest answer of DigestAt
};

// How many tokens two lists share from the first.
uint32_t CommonPrefix(std::span<const Token> a, std::span<const Token> b);

}  // namespace meshnet
