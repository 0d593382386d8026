// The ways a session or its queued steps end without an engine outcome: cancel, release, TTL, drain, poison.
#include <utility>

#include "base/check.h"
#include "kv/hot_kv_impl.h"

namespace meshnet::kv {
namespace {

Refusal PlainRefusal(Reason reason, Detail detail, const char* message) {
  Refusal refusal;
  refusal.reason = reason;
  refusal.detail = detail;
  refusal.message = message;
  return refusal;
}

}  // namespace

std::vector<Ticket> HotKv::Impl::EndSession(Sessions::iterator found, SessionEnd end, Time now, Effects& effects) {
  SessionRecord& session = found->second;
  const SequenceId sequence = session.sequence;
  const bool executes = session.executing();
  std::vector<Ticket> tickets = DropQueue(session, executes ? 1 : 0);
  if (session.idle_node.empty()) {
    idle.erase({session.stamp, session.key.session});
  } else {
    session.idle_node = {};
  }
  switch (end) {
    case SessionEnd::kEvictedTtl: ++counts.evictions_ttl; break;
    case SessionEnd::kEvictedLru: ++counts.evictions_lru; break;
    case SessionEnd::kSuperseded: ++counts.evictions_superseded; break;
    case SessionEnd::kLost: ++counts.sessions_lost; break;
    case SessionEnd::kReleased:
    case SessionEnd::kDrained: break;
  }
  // A superseded session needs none: its successor is the fence.
  if (end != SessionEnd::kSuperseded) tombstones.Put(session.key.session, {session.key.epoch, end, session.last, now});
  if (executes) {
    sequences.CloseOwner(sequence);
    closing.emplace(sequence, ClosingSession{std::move(session), end});
  } else if (sequences.DropOwner(sequence)) {
    effects.removals.push_back(sequence);
  }
  sessions.erase(found);
  return tickets;
}

std::vector<Dropped> HotKv::Cancel(const SessionKey& key) {
  SessionRecord* session = impl_->Find(key);
  if (!session) return {};
  const std::vector<Ticket> tickets = impl_->DropQueue(*session, session->executing() ? 1 : 0);
  impl_->UpdateIdle(*session);
  return impl_->RefuseAll(tickets, PlainRefusal(Reason::kCancelled, Detail::kNone, "taken out of the queue by the caller's cancel"));
}

Released HotKv::Release(const SessionKey& key, Time now) {
  Impl& kv = *impl_;
  Released released;
  const auto found = kv.sessions.find(key.session);
  if (found != kv.sessions.end() && found->second.key.epoch == key.epoch) {
    released.outcome = found->second.executing() ? ReleaseOutcome::kDeferred : ReleaseOutcome::kReleased;
    const std::vector<Ticket> tickets = kv.EndSession(found, SessionEnd::kReleased, now, released.effects);
    released.dropped = kv.RefuseAll(tickets, PlainRefusal(Reason::kCancelled, Detail::kNone, "the session was released"));
    return released;
  }
  if (key.epoch < kv.FenceOf(key.session)) {
    released.outcome = ReleaseOutcome::kEpochStale;
    return released;
  }
  // Asked again while its step still executes.
  for (const auto& [sequence, gone] : kv.closing) {
    if (gone.record.key == key && gone.end == SessionEnd::kReleased) released.outcome = ReleaseOutcome::kDeferred;
  }
  return released;
}

Expired HotKv::Expire(Time now) {
  Impl& kv = *impl_;
  Expired expired;
  while (!kv.idle.empty() && kv.due(kv.idle.begin()->first, now)) {
    const auto found = kv.sessions.find(kv.idle.begin()->second);
    MESHNET_CHECK(kv.EndSession(found, SessionEnd::kEvictedTtl, now, expired.effects).empty());
  }
  kv.tombstones.Expire(now);
  return expired;
}

void HotKv::BeginDrain() {
  if (impl_->state == ShardState::kServing) impl_->state = ShardState::kDraining;
}

Expired HotKv::FinishDrain(Time now) {
  Impl& kv = *impl_;
  BeginDrain();
  Expired expired;
  while (!kv.sessions.empty()) {
    const std::vector<Ticket> tickets = kv.EndSession(kv.sessions.begin(), SessionEnd::kDrained, now, expired.effects);
    kv.AddDropped(kv.RefuseAll(tickets, PlainRefusal(Reason::kCacheMiss, Detail::kDrained, "the worker drained before the step ran")));
  }
  return expired;
}

void HotKv::Poison() {
  Impl& kv = *impl_;
  kv.state = ShardState::kPoisoned;
  for (auto& [id, session] : kv.sessions) {
    const std::vector<Ticket> tickets = kv.DropQueue(session, session.executing() ? 1 : 0);
    kv.UpdateIdle(session);
    kv.AddDropped(kv.RefuseAll(tickets, PlainRefusal(Reason::kPoisoned, Detail::kNone, "an invariant broke before the step ran")));
  }
}

}  // namespace meshnet::kv
