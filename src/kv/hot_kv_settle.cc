// Settle: the outcome of a started step becomes a commit, a roll back to its start, or the end of its session.
#include <string>
#include <utility>

#include "base/check.h"
#include "kv/hot_kv_impl.h"

namespace meshnet::kv {
namespace {

// What the caller of a step hears whose session ended while it executed.
Refusal WhyClosed(SessionEnd end) {
  Refusal refusal;
  switch (end) {
    case SessionEnd::kReleased:
      refusal.reason = Reason::kCancelled;
      refusal.message = "the session was released while the step ran";
      break;
    case SessionEnd::kSuperseded:
      refusal.reason = Reason::kEpochStale;
      refusal.message = "a newer epoch took the session while the step ran";
      break;
    case SessionEnd::kDrained:
    case SessionEnd::kEvictedLru:
    case SessionEnd::kEvictedTtl:
    case SessionEnd::kLost:
      refusal.reason = Reason::kCacheMiss;
      refusal.detail = DetailOf(end);
      refusal.message = std::string("the session ended while the step ran: ") + Name(end);
      break;
  }
  return refusal;
}

}  // namespace

Settled HotKv::Impl::SettleClosing(const Ticket& ticket) {
  auto found = closing.begin();
  while (found != closing.end() && found->second.record.queue.front().serial != ticket.serial) ++found;
  // A step that is settled was started, so it is somewhere.
  MESHNET_CHECK(found != closing.end() && found->second.record.key == ticket.key);
  const SequenceId sequence = found->first;
  Settled settled;
  settled.refusal = Refuse(ticket.key, WhyClosed(found->second.end));
  closing.erase(found);
  sequences.DropClosing(sequence);
  settled.effects.removals.push_back(sequence);
  // Whoever took the sequence over was held busy by this one.
  if (sequences.owned(sequence)) {
    for (auto& [id, session] : sessions) {
      if (session.sequence == sequence) UpdateIdle(session);
    }
  }
  return settled;
}

Settled HotKv::Impl::SettleDone(SessionRecord& session, std::shared_ptr<StepResult> result, Time now) {
  const QueuedStep step = session.queue.front();
  MESHNET_CHECK(result && step.seq == session.last.Next() && step.end().value <= session.reserved_tokens);
  session.timeline.Commit(step.token_count, step.digest_after);
  MESHNET_CHECK(session.timeline.past_len() == step.end());
  session.queue.erase(session.queue.begin());
  session.last = step.seq;
  session.stamp = std::max(session.stamp, now);

  result->seq = step.seq;
  result->replayed = false;
  result->past_len = step.end();
  result->digest = step.digest_after;
  result->credit = CreditOf(session);
  result->kv_tokens_reserved = session.reserved_tokens;
  Settled settled;
  settled.result = std::move(result);
  session.replies.push_back({step.seq, step.fingerprint, settled.result, step.logits_bytes});
  UpdateIdle(session);
  ++counts.steps_committed;
  counts.tokens_committed += step.token_count;
  return settled;
}

Settled HotKv::Impl::SettleRolledBack(SessionRecord& session, const std::string& cause) {
  const PastLen start = session.queue.front().start;
  std::vector<Ticket> later = DropQueue(session, 0);
  later.pop_back();  // the failed step itself, which comes last
  // A step that went back had its truncation done before it failed.
  if (start < session.timeline.past_len()) session.timeline.Truncate(start);
  UpdateIdle(session);

  Settled settled;
  settled.refusal = Refuse(session.key, Reason::kExecFailed, Detail::kNone, "rolled back to " + std::to_string(start.value) + ": " + cause);
  Refusal gap;
  gap.reason = Reason::kStepGap;
  gap.message = "an earlier queued step failed";
  settled.dropped = RefuseAll(later, gap);
  return settled;
}

Settled HotKv::Impl::SettleLost(const SessionKey& key, const Refusal& why, Time now) {
  const auto found = sessions.find(key.session);
  // The engine has let go of the step: nothing executes any more.
  found->second.queue.front().executing = false;
  Settled settled;
  std::vector<Ticket> tickets = EndSession(found, SessionEnd::kLost, now, settled.effects);
  tickets.pop_back();
  settled.refusal = Refuse(key, why);
  settled.dropped = RefuseAll(tickets, why);
  return settled;
}

Settled HotKv::Settle(const Ticket& ticket, StepFate fate, std::shared_ptr<StepResult> result, std::string cause, Time now) {
  Impl& kv = *impl_;
  SessionRecord* session = kv.Find(ticket.key);
  if (!session || !session->executing() || session->queue.front().serial != ticket.serial) return kv.SettleClosing(ticket);
  Refusal why;
  if (kv.state == ShardState::kPoisoned) {
    // Nothing is committed any more, and the engine may hold the step, so the session goes.
    why.reason = Reason::kPoisoned;
    why.message = "an invariant broke while the step ran";
    return kv.SettleLost(ticket.key, why, now);
  }
  switch (fate) {
    case StepFate::kDone: return kv.SettleDone(*session, std::move(result), now);
    case StepFate::kRolledBack: return kv.SettleRolledBack(*session, cause);
    case StepFate::kLost:
      why.reason = Reason::kCacheMiss;
      why.detail = Detail::kLost;
      why.message = "the session's KV was lost: " + cause;
      return kv.SettleLost(ticket.key, why, now);
  }
  MESHNET_CHECK(false && "closed enum");
}

}  // namespace meshnet::kv
