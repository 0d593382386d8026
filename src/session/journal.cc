#include "session/journal.h"

#include <algorithm>

#include "base/check.h"

namespace meshnet {

uint32_t CommonPrefix(std::span<const Token> a, std::span<const Token> b) {
  const size_t shorter = std::min(a.size(), b.size());
  size_t n = 0;
  while (n < shorter && a[n] == b[n]) ++n;
  return static_cast<uint32_t>(n);
}

Journal::Journal(std::string cache_salt) : cache_salt_(std::move(cache_salt)), hasher_(cache_salt_) {}

void Journal::Rewrite(std::span<const Token> tokens) {
  const uint32_t common = CommonPrefix(tokens_, tokens);
  Truncate(PastLen(common));
  Append(tokens.subspan(common));
}

void Journal::Append(std::span<const Token> tokens) { tokens_.insert(tokens_.end(), tokens.begin(), tokens.end()); }

void Journal::Truncate(PastLen keep) {
  MESHNET_CHECK(keep <= length());
  tokens_.resize(keep.value);
  for (StageHeld& held : held_) held.agreed = std::min(held.agreed, keep);
  boundaries_.erase(std::upper_bound(boundaries_.begin(), boundaries_.end(), keep), boundaries_.end());
  if (hashed_ > keep) {
    hasher_ = PrefixHasher(cache_salt_);
    hashed_ = PastLen(0);
  }
  if (last_ && last_->first > keep) last_.reset();
}

void Journal::ForgetStages(size_t stage_count) { held_.assign(stage_count, StageHeld()); }

void Journal::Commit(size_t stage, PastLen past) {
  MESHNET_CHECK(past <= length());
  held_.at(stage) = {past, past};
}

void Journal::Correct(size_t stage, StageHeld held) {
  MESHNET_CHECK(held.agreed <= held.past && held.agreed <= length());
  held_.at(stage) = held;
}

PastLen Journal::agreed() const {
  if (held_.empty()) return PastLen(0);
  return std::min_element(held_.begin(), held_.end(), [](const StageHeld& a, const StageHeld& b) { return a.agreed < b.agreed; })->agreed;
}

PrefixDigest Journal::DigestAt(PastLen n) {
  MESHNET_CHECK(n <= length());
  if (last_ && last_->first == n) return last_->second;
  if (n < hashed_) {
    hasher_ = PrefixHasher(cache_salt_);
    hashed_ = PastLen(0);
  }
  hasher_.Append(tokens().subspan(hashed_.value, n.value - hashed_.value));
  hashed_ = n;
  last_ = {n, hasher_.Digest()};
  return last_->second;
}

void Journal::MarkBoundary(PastLen end) {
  auto at = std::lower_bound(boundaries_.begin(), boundaries_.end(), end);
  if (at == boundaries_.end() || *at != end) boundaries_.insert(at, end);
}

}  // namespace meshnet
