// Looking at all of it: figures for people, the snapshot that tests compare, and the invariants of the protocol's section 6.
#include <xxhash.h>

#include <algorithm>
#include <set>
#include <sstream>
#include <string>

#include "base/check.h"
#include "kv/hot_kv_impl.h"

namespace meshnet::kv {
namespace {

std::string HexOf(uint64_t value) {
  std::ostringstream text;
  text << std::hex << value;
  return text.str();
}

// Enough to see that two token logs differ.
std::string HashOf(std::span<const Token> tokens) { return HexOf(XXH3_64bits(tokens.data(), tokens.size_bytes())); }

void WriteSession(std::ostream& out, const SessionRecord& session) {
  out << IdPrefix(session.key.session) << " epoch=" << session.key.epoch.value << " seq=" << session.sequence.value
      << " reserved=" << session.reserved_tokens << " past=" << session.timeline.past_len().value << " digest=" << session.timeline.digest().Hex()
      << " tokens=" << HashOf(session.timeline.committed()) << " last=" << session.last.value << " acked=" << session.acked.value
      << " salt=" << HexOf(XXH3_64bits(session.cache_salt.data(), session.cache_salt.size()))
      << " stamp=" << session.stamp.time_since_epoch().count() << " idle=" << session.idle_node.empty() << "\n";
  for (const KeptReply& reply : session.replies) {
    out << "  reply step=" << reply.seq.value << " print=" << HexOf(reply.fingerprint.high) << HexOf(reply.fingerprint.low)
        << " past=" << reply.result->past_len.value << " digest=" << reply.result->digest.Hex() << " rows=" << reply.result->output.rows()
        << " values=" << HexOf(XXH3_64bits(reply.result->output.values().data(), reply.result->output.values().size_bytes()))
        << " sampled=" << reply.result->sampled.size() << "\n";
  }
  for (const QueuedStep& step : session.queue) {
    out << "  queued step=" << step.seq.value << " serial=" << step.serial << " print=" << HexOf(step.fingerprint.high)
        << HexOf(step.fingerprint.low) << " start=" << step.start.value << " tokens=" << step.token_count
        << " digest=" << step.digest_after.Hex() << " executing=" << step.executing;
    if (step.deadline) out << " deadline=" << step.deadline->time_since_epoch().count();
    out << "\n";
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
  std::ostringstream out;
  out << "shard " << Name(kv.state) << " reserved=" << kv.sequences.reserved_tokens() << " free=" << kv.sequences.free_count()
      << " serial=" << kv.next_serial << "\n";
  for (const auto& [id, session] : kv.sessions) {
    out << "session ";
    WriteSession(out, session);
  }
  for (const auto& [sequence, gone] : kv.closing) {
    out << "closing " << Name(gone.end) << " ";
    WriteSession(out, gone.record);
  }
  for (uint32_t i = 0; i < kv.sequences.count(); ++i) {
    if (kv.sequences.removing(SequenceId(static_cast<int32_t>(i)))) out << "removing seq=" << i << "\n";
  }
  for (const auto& [id, tombstone] : kv.tombstones.all()) {
    out << "tombstone " << IdPrefix(id) << " fence=" << tombstone.fence.value << " " << Name(tombstone.end) << " last=" << tombstone.last.value
        << " since=" << tombstone.since.time_since_epoch().count() << "\n";
  }
  for (const auto& [ticket, refusal] : kv.dropped) {
    out << "dropped " << IdPrefix(ticket.key.session) << " serial=" << ticket.serial << " " << Name(refusal.reason) << "\n";
  }
  return out.str();
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
