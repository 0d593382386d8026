#include "kv_model.h"

#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "kv/fingerprint.h"
#include "protocol/prefix_digest.h"

namespace meshnet::kv {
namespace {

KvModel::Content ContentOf(const Step& step) {
  KvModel::Content content{step.kind, step.start, step.prefix_digest, step.tokens, step.rows, step.logits_wanted, step.sampling, ""};
  if (step.input) {
    content.input = std::to_string(step.input->rows()) + "x" + std::to_string(step.input->width()) + " ";
    content.input.append(reinterpret_cast<const char*>(step.input->values().data()), step.input->values().size_bytes());
  }
  return content;
}

Detail WhyGone(KvModel::End end) {
  switch (end) {
    case KvModel::End::kEvictedLru: return Detail::kEvictedLru;
    case KvModel::End::kEvictedTtl: return Detail::kEvictedTtl;
    case KvModel::End::kLost: return Detail::kLost;
    case KvModel::End::kDrained: return Detail::kDrained;
    case KvModel::End::kReleased:
    case KvModel::End::kSuperseded: return Detail::kNoSession;
  }
  return Detail::kNone;
}

const char* Name(KvModel::End end) {
  switch (end) {
    case KvModel::End::kReleased: return "released";
    case KvModel::End::kEvictedLru: return "evicted-lru";
    case KvModel::End::kEvictedTtl: return "evicted-ttl";
    case KvModel::End::kSuperseded: return "superseded";
    case KvModel::End::kLost: return "lost";
    case KvModel::End::kDrained: return "drained";
  }
  return "";
}

std::string HexText(uint64_t value) {
  char digits[16];
  return std::string(digits, std::to_chars(digits, digits + sizeof digits, value, 16).ptr);
}

std::string HashText(const void* bytes, size_t size) { return HexText(XXH3_64bits(bytes, size)); }

// Of the whole log, every time; the last few thousand are remembered.
PrefixDigest DigestOf(const std::string& salt, const std::vector<Token>& tokens) {
  thread_local std::unordered_map<std::string, PrefixDigest> known;
  if (known.size() > 10000) known.clear();
  std::string line = salt + "|";
  line.append(reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(Token));
  const auto [found, unknown] = known.try_emplace(std::move(line));
  if (unknown) found->second = DigestOfPrefix(salt, tokens);
  return found->second;
}

PrefixDigest DigestOf(const KvModel::Session& session) { return DigestOf(session.salt, session.log); }

}  // namespace

// --- Opening ---------------------------------------------------------------------------------------------------------------------------------

OpenDecision KvModel::Open(const OpenRequest& request, Time now) {
  const SessionKey& key = request.key;
  if (state_ == ShardState::kPoisoned) return Refuse(key, Reason::kPoisoned);
  if (state_ == ShardState::kDraining) return Refuse(key, Reason::kDraining);
  if (key.epoch < Fence(key.session)) return Refuse(key, Reason::kEpochStale);
  if (key.epoch.value == 0 || request.reserve_tokens > config_.context_tokens || request.cache_salt.size() > 64) {
    return Refuse(key, Reason::kBadRequest, Detail::kLimit);
  }
  if (const Session* live = Live(key)) {
    if (live->salt != request.cache_salt) return Refuse(key, Reason::kBadRequest);
    return OpenAccepted{ReplyOf(*live), {}};
  }
  // Tried on a copy: what fails has touched nothing.
  KvModel after = *this;
  OpenAccepted accepted;
  if (const std::optional<Detail> lacking = after.TryOpen(request, now, accepted)) return Refuse(key, Reason::kCapacity, *lacking);
  *this = std::move(after);
  return accepted;
}

std::optional<Detail> KvModel::TryOpen(const OpenRequest& request, Time now, OpenAccepted& accepted) {
  const SessionKey& key = request.key;
  Session made{.key = key, .reserved = request.reserve_tokens == 0 ? config_.context_tokens : request.reserve_tokens,
               .salt = request.cache_salt, .log = {}, .last = {}, .acked = {}, .stamp = now, .kept = {}, .queue = {}};
  for (const Tombstone& tombstone : tombstones_) {
    if (tombstone.session == key.session && tombstone.fence == key.epoch) made.last = made.acked = tombstone.last;
  }
  std::erase_if(tombstones_, [&](const Tombstone& tombstone) { return tombstone.session == key.session; });

  Effects superseded;
  std::vector<Ticket> fenced;
  if (const Session* older = Live(key.session)) {
    accepted.reply.superseded = older->key.epoch;
    // What the engine still works on passes on with its place.
    if (older->executing() || closing(older->sequence)) made.sequence = older->sequence;
    fenced = EndSession(older->key, End::kSuperseded, now, superseded);
    ++counts_.evictions_superseded;
  }
  const auto place = std::ranges::find_if(live_, [&](const Session& other) { return other.key.session > key.session; });
  live_.insert(place, made);

  while (true) {
    const bool sequence = made.sequence.value >= 0 || LowestFree();
    if (sequence && reserved() <= config_.budget_tokens) break;
    const Session* victim = Victim(&key.session);
    if (!victim) return sequence ? Detail::kTokens : Detail::kSessions;
    const bool expired = victim->stamp + config_.ttl <= now;
    ++(expired ? counts_.evictions_ttl : counts_.evictions_lru);
    EndSession(victim->key, expired ? End::kEvictedTtl : End::kEvictedLru, now, accepted.effects);
  }
  Session& opened = *Live(key);
  if (opened.sequence.value < 0) opened.sequence = *LowestFree();
  accepted.effects.removals.insert(accepted.effects.removals.end(), superseded.removals.begin(), superseded.removals.end());
  for (Dropped& dropped : RefuseAll(fenced, Reason::kEpochStale)) dropped_.push_back(std::move(dropped));
  const std::optional<Epoch> older = accepted.reply.superseded;
  accepted.reply = ReplyOf(opened);
  accepted.reply.superseded = older;
  return std::nullopt;
}

const KvModel::Session* KvModel::Victim(const SessionId* asking) const {
  const Session* victim = nullptr;
  for (const Session& session : live_) {
    if ((asking && session.key.session == *asking) || !idle(session)) continue;
    if (!victim || session.stamp < victim->stamp) victim = &session;
  }
  return victim;
}

// --- Steps -----------------------------------------------------------------------------------------------------------------------------------

StepDecision KvModel::Admit(const Step& step, const std::optional<Refusal>& fields, Time now) {
  const SessionKey& key = step.key;
  if (state_ == ShardState::kPoisoned) return Refuse(key, Reason::kPoisoned);
  if (key.epoch < Fence(key.session)) return Refuse(key, Reason::kEpochStale);
  if (step.incarnation != config_.incarnation) return Refuse(key, Reason::kCacheMiss, Detail::kIncarnation);
  Session* session = Live(key);
  if (!session) {
    for (const Tombstone& tombstone : tombstones_) {
      if (tombstone.session == key.session && tombstone.fence == key.epoch) return Refuse(key, Reason::kCacheMiss, WhyGone(tombstone.end));
    }
    return Refuse(key, Reason::kCacheMiss, Detail::kNoSession);
  }
  if (std::optional<StepDecision> repeated = Repeated(*session, step)) return std::move(*repeated);
  if (std::optional<Refusal> refusal = CheckFields(*session, step, fields)) return std::move(*refusal);
  if (std::optional<Refusal> refusal = CheckPlace(*session, step)) return std::move(*refusal);
  // Counted as if the acknowledgement were in effect, which it is only if the step is admitted.
  size_t pending = step.tokens.size();
  for (const Queued& queued : session->queue) pending += queued.content.tokens.size();
  if (step.seq.value > std::max(session->acked, step.ack).value + config_.window_steps || pending > config_.pending_tokens_max) {
    return Refuse(key, Reason::kCreditExceeded);
  }
  if (step.deadline && *step.deadline <= now) return Refuse(key, Reason::kDeadlineExceeded);

  session->acked = std::max(session->acked, step.ack);
  std::erase_if(session->kept, [&](const Kept& kept) { return kept.seq <= session->acked; });
  const Fingerprint print = FingerprintOf(step);
  session->queue.push_back({step.seq, ContentOf(step), HexText(print.high) + HexText(print.low), next_serial_++, false, step.deadline});
  return StepAdmitted{{key, step.seq, session->queue.back().serial}};
}

std::optional<StepDecision> KvModel::Repeated(const Session& session, const Step& step) {
  if (step.seq.value == 0) return Refuse(step.key, Reason::kBadRequest, Detail::kLimit);
  if (step.seq > session.next()) return Refuse(step.key, Reason::kStepGap);
  if (step.seq == session.next()) return std::nullopt;
  for (const Queued& queued : session.queue) {
    if (queued.seq != step.seq) continue;
    if (queued.content == ContentOf(step)) return StepJoined{{step.key, step.seq, queued.serial}};
    return Refuse(step.key, Reason::kStepConflict);
  }
  for (const Kept& kept : session.kept) {
    if (kept.seq != step.seq) continue;
    if (kept.content != ContentOf(step)) return Refuse(step.key, Reason::kStepConflict);
    ++counts_.replays;
    return StepReplayed{kept.result};
  }
  return Refuse(step.key, Reason::kStepReplyGone);
}

std::optional<Refusal> KvModel::CheckFields(const Session& session, const Step& step, const std::optional<Refusal>& fields) {
  if (step.tokens.empty() || step.tokens.size() > config_.chunk_rows_max) return Refuse(step.key, Reason::kBadRequest, Detail::kLimit);
  if (step.kind == StepKind::kDecode && step.tokens.size() != 1) return Refuse(step.key, Reason::kBadRequest, Detail::kShape);
  if (step.ack > session.last) return Refuse(step.key, Reason::kBadRequest, Detail::kLimit);
  if (fields && fields->detail != Detail::kNonFinite) return Refuse(step.key, fields->reason, fields->detail);
  for (const Token token : step.tokens) {
    if (token < 0 || static_cast<uint32_t>(token) >= config_.vocabulary_size) return Refuse(step.key, Reason::kBadRequest, Detail::kToken);
  }
  if (fields) return Refuse(step.key, fields->reason, fields->detail);
  return std::nullopt;
}

std::optional<Refusal> KvModel::CheckPlace(const Session& session, const Step& step) {
  const std::vector<Token> projected = Projected(session);
  const size_t start = step.start.value;
  const bool back = start < projected.size();
  if (start > projected.size() || (back && (step.kind == StepKind::kDecode || !session.queue.empty()))) {
    return Refuse(step.key, Reason::kCacheMiss, Detail::kPastMismatch);
  }
  if (step.prefix_digest != DigestOfPrefix(session.salt, std::span(projected).first(start))) {
    return Refuse(step.key, Reason::kCacheMiss, Detail::kDigestMismatch);
  }
  if (back && start > 0) {
    bool possible = config_.truncation_class == TruncationClass::kFull;
    if (config_.truncation_class == TruncationClass::kWindow) {
      const uint64_t intact = probe_->IntactFrom(session.sequence).value;
      possible = intact == 0 || intact + config_.window_tokens <= start;
    }
    if (!possible) {
      Refusal refusal = Refuse(step.key, Reason::kTruncateUnsupported);
      refusal.nearest_past_len = PastLen(0);
      return refusal;
    }
  }
  if (start + step.tokens.size() > session.reserved) return Refuse(step.key, Reason::kContextExceeded);
  return std::nullopt;
}

std::optional<Execution> KvModel::Start(const Ticket& ticket, Time now) {
  Session* session = Live(ticket.key);
  if (!session) return std::nullopt;
  const auto queued = std::ranges::find(session->queue, ticket.serial, &Queued::serial);
  if (queued == session->queue.end() || queued->executing) return std::nullopt;
  MESHNET_CHECK(queued == session->queue.begin() && !closing(session->sequence) && !removing(session->sequence));
  if (queued->deadline && *queued->deadline <= now) {
    std::vector<Ticket> behind = TakeQueued(*session, 0);
    behind.pop_back();
    for (Dropped& dropped : RefuseAll(behind, Reason::kStepGap)) dropped_.push_back(std::move(dropped));
    dropped_.emplace_back(ticket, Refuse(ticket.key, Reason::kDeadlineExceeded));
    return std::nullopt;
  }
  queued->executing = true;
  return Execution{session->sequence, queued->content.start, queued->content.start.value < session->log.size()};
}

Settled KvModel::Settle(const Ticket& ticket, StepFate fate, StepResult result, Time now) {
  Settled settled;
  const auto gone = std::ranges::find_if(closing_, [&](const Closing& each) {
    return each.session.key == ticket.key && each.session.queue[0].serial == ticket.serial;
  });
  if (gone != closing_.end()) {
    const Closing ended = *gone;
    closing_.erase(gone);
    switch (ended.end) {
      case End::kSuperseded: settled.refusal = Refuse(ticket.key, Reason::kEpochStale); break;
      case End::kReleased: settled.refusal = Refuse(ticket.key, Reason::kCancelled); break;
      default: settled.refusal = Refuse(ticket.key, Reason::kCacheMiss, WhyGone(ended.end));
    }
    Remove(ended.session.sequence, settled.effects);
    return settled;
  }
  Session& session = *Live(ticket.key);
  MESHNET_CHECK(session.executing() && session.queue[0].serial == ticket.serial);
  const Queued step = session.queue[0];
  if (state_ == ShardState::kPoisoned || fate == StepFate::kLost) {
    session.queue[0].executing = false;
    std::vector<Ticket> behind = EndSession(ticket.key, End::kLost, now, settled.effects);
    behind.pop_back();
    ++counts_.sessions_lost;
    const bool poisoned = state_ == ShardState::kPoisoned;
    settled.refusal = poisoned ? Refuse(ticket.key, Reason::kPoisoned) : Refuse(ticket.key, Reason::kCacheMiss, Detail::kLost);
    settled.dropped = RefuseAll(behind, Reason::kCacheMiss, Detail::kLost);
    return settled;
  }
  session.log.resize(step.content.start.value);
  if (fate == StepFate::kRolledBack) {
    const std::vector<Ticket> behind = TakeQueued(session, 1);
    session.queue.clear();
    settled.refusal = Refuse(ticket.key, Reason::kExecFailed);
    settled.dropped = RefuseAll(behind, Reason::kStepGap);
    return settled;
  }
  session.log.insert(session.log.end(), step.content.tokens.begin(), step.content.tokens.end());
  session.last = step.seq;
  session.stamp = now;
  session.queue.erase(session.queue.begin());
  result.seq = step.seq;
  result.replayed = false;
  result.past_len = PastLen(static_cast<uint32_t>(session.log.size()));
  result.digest = DigestOf(session);
  result.credit = CreditOf(session);
  result.kv_tokens_reserved = session.reserved;
  settled.result = std::make_shared<const StepResult>(std::move(result));
  session.kept.push_back({step.seq, step.content, step.print, settled.result});
  ++counts_.steps_committed;
  counts_.tokens_committed += step.content.tokens.size();
  return settled;
}

// --- Ends ------------------------------------------------------------------------------------------------------------------------------------

std::vector<Dropped> KvModel::Cancel(const SessionKey& key) {
  Session* session = Live(key);
  if (!session) return {};
  return RefuseAll(TakeQueued(*session, session->executing() ? 1 : 0), Reason::kCancelled);
}

Released KvModel::Release(const SessionKey& key, Time now) {
  Released released;
  if (const Session* session = Live(key)) {
    released.outcome = session->executing() ? ReleaseOutcome::kDeferred : ReleaseOutcome::kReleased;
    released.dropped = RefuseAll(EndSession(key, End::kReleased, now, released.effects), Reason::kCancelled);
  } else if (key.epoch < Fence(key.session)) {
    released.outcome = ReleaseOutcome::kEpochStale;
  } else if (std::ranges::any_of(closing_, [&](const Closing& each) { return each.session.key == key && each.end == End::kReleased; })) {
    released.outcome = ReleaseOutcome::kDeferred;
  }
  return released;
}

Expired KvModel::Expire(Time now) {
  Expired expired;
  while (true) {
    const Session* first = Victim(nullptr);
    if (!first || first->stamp + config_.ttl > now) break;
    EndSession(first->key, End::kEvictedTtl, now, expired.effects);
    ++counts_.evictions_ttl;
  }
  std::erase_if(tombstones_, [&](const Tombstone& tombstone) { return tombstone.since + remembered() <= now; });
  return expired;
}

std::optional<Time> KvModel::next_expiry() const {
  std::optional<Time> next;
  auto consider = [&](Time time) { next = next ? std::min(*next, time) : time; };
  if (const Session* first = Victim(nullptr)) consider(first->stamp + config_.ttl);
  for (const Tombstone& tombstone : tombstones_) consider(tombstone.since + remembered());
  return next;
}

void KvModel::ConfirmRemoved(SequenceId sequence) {
  MESHNET_CHECK(removing(sequence));
  std::erase(removing_, sequence);
}

void KvModel::BeginDrain() {
  if (state_ == ShardState::kServing) state_ = ShardState::kDraining;
}

Expired KvModel::FinishDrain(Time now) {
  BeginDrain();
  Expired expired;
  while (!live_.empty()) {
    const std::vector<Ticket> tickets = EndSession(live_[0].key, End::kDrained, now, expired.effects);
    for (Dropped& dropped : RefuseAll(tickets, Reason::kCacheMiss, Detail::kDrained)) dropped_.push_back(std::move(dropped));
  }
  return expired;
}

void KvModel::Poison() {
  state_ = ShardState::kPoisoned;
  for (Session& session : live_) {
    const std::vector<Ticket> tickets = TakeQueued(session, session.executing() ? 1 : 0);
    for (Dropped& dropped : RefuseAll(tickets, Reason::kPoisoned)) dropped_.push_back(std::move(dropped));
  }
}

std::vector<Dropped> KvModel::TakeDropped() { return std::exchange(dropped_, {}); }

// The session is live no more; its queued steps come back, the last first.
std::vector<Ticket> KvModel::EndSession(SessionKey key, End end, Time now, Effects& effects) {
  Session session = *Live(key);
  std::erase_if(live_, [&](const Session& each) { return each.key == key; });
  if (end != End::kSuperseded) {
    const auto older = [](const Tombstone& a, const Tombstone& b) { return std::pair(a.since, a.session) < std::pair(b.since, b.session); };
    if (tombstones_.size() == config_.tombstones_max) tombstones_.erase(std::ranges::min_element(tombstones_, older));
    tombstones_.push_back({key.session, key.epoch, end, session.last, now});
  }
  const std::vector<Ticket> tickets = TakeQueued(session, session.executing() ? 1 : 0);
  const SequenceId sequence = session.sequence;
  if (session.executing()) {
    const auto place = std::ranges::find_if(closing_, [&](const Closing& other) { return other.session.sequence > sequence; });
    closing_.insert(place, {std::move(session), end});
  } else if (!closing(sequence)) {
    Remove(sequence, effects);
  }
  return tickets;
}

// A sequence that waits to be emptied already was not used since.
void KvModel::Remove(SequenceId sequence, Effects& effects) {
  if (removing(sequence)) return;
  removing_.push_back(sequence);
  std::ranges::sort(removing_);
  effects.removals.push_back(sequence);
}

// The last first. They are refused once all are gone, so that each is told what holds afterwards: the number to go on from.
std::vector<Ticket> KvModel::TakeQueued(Session& session, size_t keep) {
  std::vector<Ticket> tickets;
  for (; session.queue.size() > keep; session.queue.pop_back()) {
    tickets.push_back({session.key, session.queue.back().seq, session.queue.back().serial});
  }
  return tickets;
}

// --- Words -----------------------------------------------------------------------------------------------------------------------------------

Refusal KvModel::Refuse(const SessionKey& key, Reason reason, Detail detail) {
  Refusal refusal;
  refusal.reason = reason;
  refusal.detail = detail;
  refusal.fence = Fence(key.session);
  refusal.incarnation = config_.incarnation;
  if (const Session* session = Live(key)) {
    refusal.session = {PastLen(static_cast<uint32_t>(session->log.size())), DigestOf(*session), session->next(), CreditOf(*session).step_seq_max};
  }
  // How long is the machine's own judgement.
  if (reason == Reason::kCapacity || reason == Reason::kCreditExceeded) refusal.retry_after = Duration(1);
  ++refusals_[Name(reason)];
  return refusal;
}

std::vector<Dropped> KvModel::RefuseAll(const std::vector<Ticket>& tickets, Reason reason, Detail detail) {
  std::vector<Dropped> dropped;
  for (const Ticket& ticket : tickets) dropped.emplace_back(ticket, Refuse(ticket.key, reason, detail));
  return dropped;
}

OpenReply KvModel::ReplyOf(const Session& session) const {
  return {config_.incarnation, PastLen(static_cast<uint32_t>(session.log.size())), DigestOf(session), session.next(), CreditOf(session),
          session.reserved, std::nullopt};
}

Credit KvModel::CreditOf(const Session& session) const {
  return {StepSeq(session.acked.value + config_.window_steps), config_.pending_tokens_max};
}

std::vector<Token> KvModel::Projected(const Session& session) {
  std::vector<Token> tokens = session.log;
  for (const Queued& queued : session.queue) {
    tokens.resize(queued.content.start.value);
    tokens.insert(tokens.end(), queued.content.tokens.begin(), queued.content.tokens.end());
  }
  return tokens;
}

KvModel::Session* KvModel::Live(const SessionId& id) {
  for (Session& session : live_) {
    if (session.key.session == id) return &session;
  }
  return nullptr;
}

KvModel::Session* KvModel::Live(const SessionKey& key) { return const_cast<Session*>(Find(key)); }

const KvModel::Session* KvModel::Find(const SessionKey& key) const {
  for (const Session& session : live_) {
    if (session.key == key) return &session;
  }
  return nullptr;
}

std::span<const Token> KvModel::TokenLog(const SessionKey& key) const {
  const Session* session = Find(key);
  return session ? session->log : std::span<const Token>();
}

Epoch KvModel::Fence(const SessionId& id) const {
  for (const Session& session : live_) {
    if (session.key.session == id) return session.key.epoch;
  }
  for (const Tombstone& tombstone : tombstones_) {
    if (tombstone.session == id) return tombstone.fence;
  }
  return Epoch(0);
}

bool KvModel::closing(SequenceId sequence) const {
  return std::ranges::any_of(closing_, [&](const Closing& each) { return each.session.sequence == sequence; });
}

bool KvModel::used(SequenceId sequence) const {
  return closing(sequence) || std::ranges::any_of(live_, [&](const Session& each) { return each.sequence == sequence; });
}

bool KvModel::removing(SequenceId sequence) const { return std::ranges::find(removing_, sequence) != removing_.end(); }

std::optional<SequenceId> KvModel::LowestFree() const {
  for (int32_t i = 0; static_cast<uint32_t>(i) < config_.sessions_max; ++i) {
    if (!used(SequenceId(i))) return SequenceId(i);
  }
  return std::nullopt;
}

// Of an older session whose step executes and the one that takes its place, only the larger counts.
uint64_t KvModel::reserved() const {
  uint64_t sum = 0;
  for (const Session& session : live_) {
    uint32_t held = session.reserved;
    for (const Closing& gone : closing_) {
      if (gone.session.sequence == session.sequence) held = std::max(held, gone.session.reserved);
    }
    sum += held;
  }
  for (const Closing& gone : closing_) {
    const auto shares = [&](const Session& session) { return session.sequence == gone.session.sequence; };
    if (std::ranges::none_of(live_, shares)) sum += gone.session.reserved;
  }
  return sum;
}

ShardStats KvModel::Stats(Time now) const {
  ShardStats stats = counts_;
  stats.state = state_;
  stats.incarnation = config_.incarnation;
  stats.sessions_live = static_cast<uint32_t>(live_.size());
  stats.kv_tokens_reserved = reserved();
  for (const Session& session : live_) {
    const bool busy = !session.queue.empty();
    stats.sessions_busy += busy;
    stats.kv_tokens_used += session.log.size();
    stats.steps_queued += static_cast<uint32_t>(session.queue.size()) - session.executing();
    stats.sessions.push_back({IdPrefix(session.key.session), session.key.epoch, PastLen(static_cast<uint32_t>(session.log.size())),
                              session.reserved, busy, std::chrono::duration<double>(now - session.stamp).count()});
  }
  for (int32_t i = 0; static_cast<uint32_t>(i) < config_.sessions_max; ++i) stats.sequences_free += !used(SequenceId(i));
  stats.refusals.assign(refusals_.begin(), refusals_.end());
  return stats;
}

std::string KvModel::TextOf(const Session& session) const {
  std::string text;
  text.reserve(1024);
  text.append(IdPrefix(session.key.session));
  auto add = [&](const char* key, const auto& value) {
    text.append(key);
    if constexpr (std::is_arithmetic_v<std::decay_t<decltype(value)>>) {
      char digits[24];
      text.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
    } else {
      text.append(value);
    }
  };
  add(" epoch=", session.key.epoch.value), add(" seq=", session.sequence.value), add(" reserved=", session.reserved);
  add(" past=", session.log.size()), add(" digest=", DigestOf(session).Hex());
  add(" tokens=", HashText(session.log.data(), session.log.size() * sizeof(Token)));
  add(" last=", session.last.value), add(" acked=", session.acked.value), add(" salt=", HashText(session.salt.data(), session.salt.size()));
  add(" stamp=", session.stamp.time_since_epoch().count());
  if (Find(session.key) == &session) add(" idle=", idle(session) ? "1" : "0");
  for (const Kept& kept : session.kept) {
    const std::span<const float> values = kept.result->output.values();
    add("\n  reply step=", kept.seq.value), add(" print=", kept.print), add(" past=", kept.result->past_len.value);
    add(" digest=", kept.result->digest.Hex()), add(" rows=", kept.result->output.rows());
    add(" values=", HashText(values.data(), values.size_bytes())), add(" sampled=", kept.result->sampled.size());
  }
  std::vector<Token> tokens = session.log;
  for (const Queued& queued : session.queue) {
    tokens.resize(queued.content.start.value);
    tokens.insert(tokens.end(), queued.content.tokens.begin(), queued.content.tokens.end());
    add("\n  queued step=", queued.seq.value), add(" serial=", queued.serial), add(" print=", queued.print);
    add(" start=", queued.content.start.value), add(" tokens=", queued.content.tokens.size());
    add(" digest=", DigestOf(session.salt, tokens).Hex()), add(" executing=", queued.executing ? "1" : "0");
    if (queued.deadline) add(" deadline=", queued.deadline->time_since_epoch().count());
  }
  return text + "\n";
}

std::string KvModel::Snapshot() const {
  uint32_t free = 0;
  for (int32_t i = 0; static_cast<uint32_t>(i) < config_.sessions_max; ++i) free += !used(SequenceId(i));
  std::string text = std::string("shard ") + meshnet::Name(state_) + " reserved=" + std::to_string(reserved()) + " free=" + std::to_string(free) +
                     " serial=" + std::to_string(next_serial_) + "\n";
  for (const Session& session : live_) text += "session " + TextOf(session);
  for (const Closing& gone : closing_) text += std::string("closing ") + Name(gone.end) + " " + TextOf(gone.session);
  for (const SequenceId sequence : removing_) text += "removing seq=" + std::to_string(sequence.value) + "\n";
  std::vector<Tombstone> by_id = tombstones_;
  std::ranges::sort(by_id, {}, &Tombstone::session);
  for (const Tombstone& tombstone : by_id) {
    text += "tombstone " + IdPrefix(tombstone.session) + " fence=" + std::to_string(tombstone.fence.value) + " " + Name(tombstone.end) +
            " last=" + std::to_string(tombstone.last.value) + " since=" + std::to_string(tombstone.since.time_since_epoch().count()) + "\n";
  }
  for (const auto& [ticket, refusal] : dropped_) {
    text += "dropped " + IdPrefix(ticket.key.session) + " serial=" + std::to_string(ticket.serial) + " " + meshnet::Name(refusal.reason) + "\n";
  }
  return text;
}

}  // namespace meshnet::kv
