#include "kv/token_timeline.h"

#include <algorithm>

#include "base/check.h"

namespace meshnet::kv {

TokenTimeline::TokenTimeline(std::string_view cache_salt) : hasher_(cache_salt) {
  digest_ = hasher_.Digest();
  checkpoints_.push_back(hasher_);
}

PrefixDigest TokenTimeline::DigestAt(PastLen length) const {
  MESHNET_CHECK(length <= past_len());
  if (length == past_len()) return digest_;
  // Checkpoints beyond base_ belong to the queued line.
  const uint32_t index = std::min(length.value, base_) / kCheckpointTokens;
  PrefixHasher hasher = checkpoints_[index];
  const uint32_t from = index * kCheckpointTokens;
  hasher.Append(committed().subspan(from, length.value - from));
  return hasher.Digest();
}

PrefixDigest TokenTimeline::Queue(PastLen start, std::span<const Token> tokens) {
  if (queued_.empty() && start < past_len()) {
    base_ = start.value;
    Rewind(base_, base_);
  }
  MESHNET_CHECK(start == projected_len());
  Append(tokens);
  queued_.insert(queued_.end(), tokens.begin(), tokens.end());
  return hasher_.Digest();
}

void TokenTimeline::DropQueued(uint32_t count) {
  if (count == 0) return;
  MESHNET_CHECK(count <= queued_.size());
  queued_.resize(queued_.size() - count);
  const uint32_t trusted = projected_len().value;
  // A truncating step that goes leaves the committed line as it was.
  if (queued_.empty()) base_ = past_len().value;
  Rewind(projected_len().value, trusted);
}

void TokenTimeline::Commit(uint32_t count, const PrefixDigest& digest) {
  MESHNET_CHECK(count <= queued_.size());
  committed_.resize(base_);
  const auto end = queued_.begin() + static_cast<ptrdiff_t>(count);
  committed_.insert(committed_.end(), queued_.begin(), end);
  queued_.erase(queued_.begin(), end);
  base_ = past_len().value;
  digest_ = digest;
}

void TokenTimeline::Truncate(PastLen keep) {
  MESHNET_CHECK(queued_.empty() && keep <= past_len());
  digest_ = DigestAt(keep);
  committed_.resize(keep.value);
  base_ = keep.value;
  Rewind(base_, base_);
}

void TokenTimeline::Append(std::span<const Token> tokens) {
  uint32_t length = projected_len().value;
  while (!tokens.empty()) {
    const uint32_t room = kCheckpointTokens - length % kCheckpointTokens;
    const std::span<const Token> part = tokens.first(std::min<size_t>(room, tokens.size()));
    hasher_.Append(part);
    length += static_cast<uint32_t>(part.size());
    if (length % kCheckpointTokens == 0) checkpoints_.push_back(hasher_);
    tokens = tokens.subspan(part.size());
  }
}

// Brings hasher and checkpoints to `length` of the line [committed up to base_, queued]; checkpoints up to `trusted` are of that line.
void TokenTimeline::Rewind(uint32_t length, uint32_t trusted) {
  const uint32_t index = std::min(length, trusted) / kCheckpointTokens;
  checkpoints_.resize(index + 1, checkpoints_.front());
  hasher_ = checkpoints_.back();
  uint32_t at = index * kCheckpointTokens;
  while (at < length) {
    const bool is_committed = at < base_;
    const uint32_t part_end = std::min({length, (at / kCheckpointTokens + 1) * kCheckpointTokens, is_committed ? base_ : length});
    const std::span<const Token> line = is_committed ? committed() : std::span<const Token>(queued_);
    hasher_.Append(line.subspan(is_committed ? at : at - base_, part_end - at));
    at = part_end;
    if (at % kCheckpointTokens == 0) checkpoints_.push_back(hasher_);
  }
}

}  // namespace meshnet::kv
