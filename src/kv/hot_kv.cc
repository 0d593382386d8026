#include "kv/hot_kv.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kv/hot_kv_impl.h"

namespace meshnet::kv {
namespace {

Duration TombstoneLifetime(Duration ttl) { return std::max<Duration>(2 * ttl, std::chrono::minutes(10)); }

}  // namespace

HotKv::Impl::Impl(HotKvConfig c, const SequenceProbe& p)
    : config(std::move(c)),
      probe(p),
      sequences(config.sessions_max, config.budget_tokens),
      tombstones(config.tombstones_max, TombstoneLifetime(config.ttl)) {
  MESHNET_CHECK(config.sessions_max > 0 && config.sessions_max <= 256);
  MESHNET_CHECK(config.context_tokens > 0 && config.context_tokens <= config.budget_tokens);
  MESHNET_CHECK(config.ttl > Duration::zero() && config.ttl <= std::chrono::hours(24 * 366));
  MESHNET_CHECK(config.window_steps > 0 && config.chunk_rows_max > 0 && config.chunk_rows_max <= config.pending_tokens_max);
  MESHNET_CHECK(config.vocabulary_size > 0 && config.tombstones_max > 0);
  MESHNET_CHECK(config.truncation_class != TruncationClass::kWindow || config.window_tokens > 0);
}

SessionRecord* HotKv::Impl::Find(const SessionKey& key) {
  auto found = sessions.find(key.session);
  return found == sessions.end() || found->second.key.epoch != key.epoch ? nullptr : &found->second;
}

Epoch HotKv::Impl::FenceOf(const SessionId& session) const {
  if (auto live = sessions.find(session); live != sessions.end()) return live->second.key.epoch;
  const Tombstone* tombstone = tombstones.Find(session);
  return tombstone ? tombstone->fence : Epoch(0);
}

Refusal HotKv::Impl::Refuse(const SessionKey& key, Refusal refusal) {
  ++counts.refusals[static_cast<size_t>(refusal.reason)];
  refusal.incarnation = config.incarnation;
  refusal.fence = FenceOf(key.session);
  refusal.session.reset();
  if (const SessionRecord* session = Find(key)) {
    refusal.session = SessionSnapshot{session->timeline.past_len(), session->timeline.digest(), session->next_step(),
                                      CreditOf(*session).step_seq_max};
  }
  return refusal;
}

Refusal HotKv::Impl::Refuse(const SessionKey& key, Reason reason, Detail detail, std::string message) {
  Refusal refusal;
  refusal.reason = reason;
  refusal.detail = detail;
  refusal.message = std::move(message);
  return Refuse(key, std::move(refusal));
}

void HotKv::Impl::UpdateIdle(SessionRecord& session) {
  // While a closing session holds its sequence, the session's end would free nothing: it counts as busy.
  const bool busy = !session.queue.empty() || sequences.closing(session.sequence);
  if (busy && session.idle_node.empty()) {
    session.idle_node = idle.extract({session.stamp, session.key.session});
    MESHNET_CHECK(!session.idle_node.empty());
  } else if (!busy && !session.idle_node.empty()) {
    session.idle_node.value().first = session.stamp;
    MESHNET_CHECK(idle.insert(std::move(session.idle_node)).inserted);
    session.idle_node = {};
  }
}

std::vector<Ticket> HotKv::Impl::DropQueue(SessionRecord& session, size_t index) {
  std::vector<Ticket> tickets;
  uint32_t tokens = 0;
  while (session.queue.size() > index) {
    const QueuedStep& step = session.queue.back();
    tickets.push_back({session.key, step.seq, step.serial});
    tokens += step.token_count;
    session.queue.pop_back();
  }
  session.timeline.DropQueued(tokens);
  return tickets;
}

std::vector<Dropped> HotKv::Impl::RefuseAll(const std::vector<Ticket>& tickets, const Refusal& refusal) {
  std::vector<Dropped> refused;
  for (const Ticket& ticket : tickets) refused.emplace_back(ticket, Refuse(ticket.key, refusal));
  return refused;
}

void HotKv::Impl::AddDropped(std::vector<Dropped> more) {
  dropped.insert(dropped.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

HotKv::HotKv(HotKvConfig config, const SequenceProbe& probe) : impl_(std::make_unique<Impl>(std::move(config), probe)) {}
HotKv::~HotKv() = default;

std::optional<Execution> HotKv::Start(const Ticket& ticket, Time now) {
  SessionRecord* session = impl_->Find(ticket.key);
  const QueuedStep* step = session ? session->FindQueued(ticket.seq) : nullptr;
  if (!step || step->serial != ticket.serial || step->executing) return std::nullopt;
  if (step->deadline && now >= *step->deadline) {
    const size_t index = static_cast<size_t>(step - session->queue.data());
    const std::vector<Ticket> tickets = impl_->DropQueue(*session, index);
    impl_->UpdateIdle(*session);
    for (const Ticket& gone : tickets) {
      const bool late = gone == ticket;
      Refusal refusal = late ? impl_->Refuse(gone.key, Reason::kDeadlineExceeded, Detail::kNone, "the step was still queued at its deadline")
                             : impl_->Refuse(gone.key, Reason::kStepGap, Detail::kNone, "an earlier queued step passed its deadline");
      impl_->dropped.emplace_back(gone, std::move(refusal));
    }
    return std::nullopt;
  }
  MESHNET_CHECK(step == &session->queue.front() && impl_->sequences.startable(session->sequence));
  session->queue.front().executing = true;
  return Execution{session->sequence, step->start, step->start < session->timeline.past_len()};
}

void HotKv::ConfirmRemoved(SequenceId sequence) { impl_->sequences.ConfirmRemoved(sequence); }

std::optional<Time> HotKv::next_expiry() const {
  std::optional<Time> next = impl_->tombstones.next_expiry();
  if (!impl_->idle.empty()) {
    const Time first = impl_->idle.begin()->first + impl_->config.ttl;
    next = next ? std::min(*next, first) : first;
  }
  return next;
}

std::vector<Dropped> HotKv::TakeDropped() { return std::exchange(impl_->dropped, {}); }

std::span<const Token> HotKv::TokenLog(const SessionKey& key) const {
  const SessionRecord* session = impl_->Find(key);
  return session ? session->timeline.committed() : std::span<const Token>();
}

}  // namespace meshnet::kv
