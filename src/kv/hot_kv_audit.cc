// Looking at all of it: figures for people, the snapshot that tests compare, and the invariants of the protocol's section 6.
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/check.h"
#include "kv/hot_kv_impl.h"

namespace meshnet::kv {
namespace {

// Text without streams, since tests ask for it after every call.
class SnapshotText {
 public:
  SnapshotText& Add(std::string_view word) {
    text_.append(word);
    return *this;
  }
  template <typename Integer>
    requires std::is_integral_v<Integer>
  SnapshotText& Add(std::string_view key, Integer value, int base = 10) {
    char digits[24];
    text_.append(key).append(digits, std::to_chars(digits, digits + sizeof digits, value, base).ptr);
    return *this;
  }
  // Enough to see that two lists differ.
  template <typename T>
  SnapshotText& AddHash(std::string_view key, std::span<const T> values) {
    return Add(key, XXH3_64bits(values.data(), values.size_bytes()), 16);
  }
  SnapshotText& Add(const Fingerprint& print) { return Add(" print=", print.high, 16).Add("", print.low, 16); }
  SnapshotText& Add(const PrefixDigest& digest) { return Add(" digest=").Add(digest.Hex()); }
  void AddSession(const SessionRecord& session, std::string_view idle);

  std::string Take() { return std::move(text_); }

 private:
  std::string text_;
};

void SnapshotText::AddSession(const SessionRecord& session, std::string_view idle) {
  Add(IdPrefix(session.key.session)).Add(" epoch=", session.key.epoch.value).Add(" seq=", session.sequence.value);
  Add(" reserved=", session.reserved_tokens).Add(" past=", session.timeline.past_len().value).Add(session.timeline.digest());
  AddHash(" tokens=", session.timeline.committed()).Add(" last=", session.last.value).Add(" acked=", session.acked.value);
  AddHash(" salt=", std::span<const char>(session.cache_salt)).Add(" stamp=", session.stamp.time_since_epoch().count()).Add(idle).Add("\n");
  for (const KeptReply& reply : session.replies) {
    Add("  reply step=", reply.seq.value).Add(reply.fingerprint).Add(" past=", reply.result->past_len.value).Add(reply.result->digest);
    Add(" rows=", reply.result->output.rows()).AddHash(" values=", reply.result->output.values());
    Add(" sampled=", reply.result->sampled.size()).Add("\n");
  }
  for (const QueuedStep& step : session.queue) {
    Add("  queued step=", step.seq.value).Add(" serial=", step.serial).Add(step.fingerprint).Add(" start=", step.start.value);
    Add(" tokens=", step.token_count).Add(step.digest_after).Add(step.executing ? " executing=1" : " executing=0");
    if (step.deadline) Add(" deadline=", step.deadline->time_since_epoch().count());
    Add("\n");
  }
}

void CheckQueue(const SessionRecord& session, const HotKvConfig& config) {
  // Digests are computed here from the tokens alone: committed up to the start, then whatever the timeline says is queued.
  StepSeq seq = session.last;
  PastLen at = session.queue.empty() ? session.timeline.past_len() : session.queue.front().start;
  uint32_t tokens = 0;
  for (const QueuedStep& step : session.queue) {
    MESHNET_CHECK(step.seq == seq.Next() && step.token_count > 0);
    MESHNET_CHECK(step.start == at);
    MESHNET_CHECK(!step.executing || &step == &session.queue.front());
    MESHNET_CHECK(step.seq.value <= session.acked.value + config.window_steps);
    seq = step.seq;
    at = step.end();
    tokens += step.token_count;
  }
  MESHNET_CHECK(at == session.timeline.projected_len() && at.value <= session.reserved_tokens);
  MESHNET_CHECK(tokens == session.timeline.queued_tokens() && tokens <= config.pending_tokens_max);
}

void CheckReplies(const SessionRecord& session, const HotKvConfig& config) {
  MESHNET_CHECK(session.acked <= session.last && session.last.value - session.acked.value == session.replies.size());
  MESHNET_CHECK(session.replies.size() + session.queue.size() <= config.window_steps);
  StepSeq seq = session.acked;
  for (const KeptReply& reply : session.replies) {
    MESHNET_CHECK(reply.seq == seq.Next() && reply.result && reply.result->seq == reply.seq && !reply.result->replayed);
    seq = reply.seq;
  }
}

void CheckSession(const SessionRecord& session, const HotKvConfig& config) {
  MESHNET_CHECK(session.timeline.past_len().value <= session.reserved_tokens && session.reserved_tokens <= config.context_tokens);
  MESHNET_CHECK(session.timeline.digest() == DigestOfPrefix(session.cache_salt, session.timeline.committed()));
  CheckQueue(session, config);
  CheckReplies(session, config);
}

}  // namespace

ShardStats HotKv::Stats(Time now) const {
  const Impl& kv = *impl_;
  ShardStats stats;
  stats.state = kv.state;
  stats.incarnation = kv.config.incarnation;
  stats.sessions_live = static_cast<uint32_t>(kv.sessions.size());
  stats.kv_tokens_reserved = kv.sequences.reserved_tokens();
  stats.sequences_free = kv.sequences.free_count();
  for (const auto& [id, session] : kv.sessions) {
    const bool busy = !session.queue.empty();
    stats.sessions_busy += busy ? 1 : 0;
    stats.kv_tokens_used += session.timeline.past_len().value;
    stats.steps_queued += session.steps_waiting();
    const double idle_seconds = std::chrono::duration<double>(std::max(now - session.stamp, Duration::zero())).count();
    stats.sessions.push_back({IdPrefix(id), session.key.epoch, session.timeline.past_len(), session.reserved_tokens, busy, idle_seconds});
  }
  stats.evictions_ttl = kv.counts.evictions_ttl;
  stats.evictions_lru = kv.counts.evictions_lru;
  stats.evictions_superseded = kv.counts.evictions_superseded;
  stats.sessions_lost = kv.counts.sessions_lost;
  stats.replays = kv.counts.replays;
  stats.steps_committed = kv.counts.steps_committed;
  stats.tokens_committed = kv.counts.tokens_committed;
  for (size_t i = 0; i < kv.counts.refusals.size(); ++i) {
    if (kv.counts.refusals[i] > 0) stats.refusals.emplace_back(Name(static_cast<Reason>(i)), kv.counts.refusals[i]);
  }
  std::ranges::sort(stats.refusals);
  return stats;
}

std::string HotKv::Snapshot() const {
  const Impl& kv = *impl_;
  SnapshotText out;
  out.Add("shard ").Add(Name(kv.state)).Add(" reserved=", kv.sequences.reserved_tokens()).Add(" free=", kv.sequences.free_count());
  out.Add(" serial=", kv.next_serial).Add("\n");
  for (const auto& [id, session] : kv.sessions) {
    out.Add("session ").AddSession(session, session.idle_node.empty() ? " idle=1" : " idle=0");
  }
  for (const auto& [sequence, gone] : kv.closing) {
    out.Add("closing ").Add(Name(gone.end)).Add(" ").AddSession(gone.record, "");
  }
  for (uint32_t i = 0; i < kv.sequences.count(); ++i) {
    if (kv.sequences.removing(SequenceId(static_cast<int32_t>(i)))) out.Add("removing seq=", i).Add("\n");
  }
  for (const auto& [id, tombstone] : kv.tombstones.all()) {
    out.Add("tombstone ").Add(IdPrefix(id)).Add(" fence=", tombstone.fence.value).Add(" ").Add(Name(tombstone.end));
    out.Add(" last=", tombstone.last.value).Add(" since=", tombstone.since.time_since_epoch().count()).Add("\n");
  }
  for (const auto& [ticket, refusal] : kv.dropped) {
    out.Add("dropped ").Add(IdPrefix(ticket.key.session)).Add(" serial=", ticket.serial).Add(" ").Add(Name(refusal.reason)).Add("\n");
  }
  return out.Take();
}

void HotKv::CheckInvariants() const {
  const Impl& kv = *impl_;
  std::set<SequenceId> owned;
  uint64_t reserved = 0;
  for (const auto& [id, session] : kv.sessions) {
    MESHNET_CHECK(session.key.session == id && session.key.epoch.value > 0);
    CheckSession(session, kv.config);
    MESHNET_CHECK(kv.sequences.owned(session.sequence) && owned.insert(session.sequence).second);
    MESHNET_CHECK(!session.executing() || kv.sequences.startable(session.sequence));
    MESHNET_CHECK(!kv.tombstones.Find(id));
    const bool idle = session.queue.empty() && !kv.sequences.closing(session.sequence);
    MESHNET_CHECK(idle == session.idle_node.empty() && idle == kv.idle.contains({session.stamp, id}));
    const auto closing = kv.closing.find(session.sequence);
    reserved += std::max(session.reserved_tokens, closing == kv.closing.end() ? 0 : closing->second.record.reserved_tokens);
  }
  for (const auto& [sequence, gone] : kv.closing) {
    MESHNET_CHECK(gone.record.sequence == sequence && kv.sequences.closing(sequence));
    MESHNET_CHECK(gone.record.executing() && gone.record.queue.size() == 1);
    if (owned.insert(sequence).second) reserved += gone.record.reserved_tokens;
  }
  MESHNET_CHECK(kv.idle.size() <= kv.sessions.size());
  MESHNET_CHECK(owned.size() + kv.sequences.free_count() == kv.sequences.count());
  MESHNET_CHECK(reserved == kv.sequences.reserved_tokens() && reserved <= kv.config.budget_tokens);
  for (uint32_t i = 0; i < kv.sequences.count(); ++i) {
    const SequenceId sequence(static_cast<int32_t>(i));
    MESHNET_CHECK(kv.sequences.is_free(sequence) == !owned.contains(sequence));
  }
  MESHNET_CHECK(kv.tombstones.within_bounds());
}

}  // namespace meshnet::kv
