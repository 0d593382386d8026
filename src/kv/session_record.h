// One live session: its tokens, its queued steps, and the replies its caller has not acknowledged.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "kv/fingerprint.h"
#include "kv/token_timeline.h"
#include "protocol/step.h"

namespace meshnet::kv {

struct QueuedStep {
  uint64_t serial = 0;
  StepSeq seq;
  PastLen start;
  uint32_t token_count = 0;
  Fingerprint fingerprint;
  PrefixDigest digest_after;
  std::optional<Time> deadline;
  uint64_t logits_bytes = 0;  // that its reply will hold
  bool executing = false;  // only the first of a queue

  PastLen end() const { return PastLen(start.value + token_count); }
};

struct KeptReply {
  StepSeq seq;
  Fingerprint fingerprint;
  std::shared_ptr<const StepResult> result;
  uint64_t logits_bytes = 0;
};

// Idle sessions, the least recently committed first, ties by id: the order of victims. A busy session keeps its node, so that the way of a
// step allocates nothing here.
using IdleOrder = std::set<std::pair<Time, SessionId>>;

struct SessionRecord {
  SessionRecord(const SessionKey& session_key, std::string salt) : key(session_key), cache_salt(std::move(salt)), timeline(cache_salt) {}

  SessionKey key;
  std::string cache_salt;
  SequenceId sequence;
  uint32_t reserved_tokens = 0;
  TokenTimeline timeline;
  StepSeq last;                    // committed
  StepSeq acked;                   // the caller holds every reply up to this one
  std::vector<QueuedStep> queue;   // in order, the seqs after `last`
  std::vector<KeptReply> replies;  // in order, the seqs in (acked, last]
  Time stamp;                      // of the last commit, or of the Open
  IdleOrder::node_type idle_node;  // while busy

  StepSeq next_step() const { return StepSeq(last.value + queue.size() + 1); }
  bool executing() const { return !queue.empty() && queue.front().executing; }
  uint32_t steps_waiting() const { return static_cast<uint32_t>(queue.size()) - (executing() ? 1 : 0); }
  const QueuedStep* FindQueued(StepSeq seq) const {
    return seq > last && seq < next_step() ? &queue[seq.value - last.value - 1] : nullptr;
  }
  const KeptReply* FindReply(StepSeq seq) const {
    return seq > acked && seq <= last ? &replies[seq.value - acked.value - 1] : nullptr;
  }
  // Of full logits, in the replies after `seq` and those that queued steps will have.
  uint64_t LogitsBytesAfter(StepSeq from) const {
    uint64_t bytes = 0;
    for (const KeptReply& reply : replies) bytes += reply.seq > from ? reply.logits_bytes : 0;
    for (const QueuedStep& step : queue) bytes += step.logits_bytes;
    return bytes;
  }
  void Acknowledge(StepSeq seq) {
    if (seq <= acked) return;
    replies.erase(replies.begin(), replies.begin() + static_cast<ptrdiff_t>(seq.value - acked.value));
    acked = seq;
  }
};

}  // namespace meshnet::kv
