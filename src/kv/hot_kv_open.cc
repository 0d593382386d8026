// Open: a query, a new session, or one that supersedes an older epoch. Everything is decided before anything is changed.
#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "kv/hot_kv_impl.h"

namespace meshnet::kv {
namespace {

constexpr size_t kCacheSaltBytesMax = 64;
// How soon a caller without room may ask again: not sooner than this, and not later, since any session may be released meanwhile.
constexpr Duration kRetryMin = std::chrono::milliseconds(10);
constexpr Duration kRetryMax = std::chrono::seconds(1);

std::string EpochText(const SessionKey& key) { return "epoch " + std::to_string(key.epoch.value); }

// Forgets why the session ended, since it begins again. The step it goes on from when this is its own epoch, 0 otherwise.
StepSeq TakeLast(Tombstones& tombstones, const SessionKey& key) {
  const Tombstone* tombstone = tombstones.Find(key.session);
  const StepSeq last = tombstone && tombstone->fence == key.epoch ? tombstone->last : StepSeq(0);
  tombstones.Erase(key.session);
  return last;
}

}  // namespace

std::optional<Refusal> HotKv::Impl::CheckOpen(const OpenRequest& request, const SessionRecord* live) {
  const SessionKey& key = request.key;
  auto refuse = [&](Reason reason, Detail detail, std::string cause) {
    return Refuse(key, reason, detail, EpochText(key) + ": " + std::move(cause));
  };
  if (state == ShardState::kPoisoned) return refuse(Reason::kPoisoned, Detail::kNone, "an invariant broke, this worker serves no more");
  if (state == ShardState::kDraining) return refuse(Reason::kDraining, Detail::kNone, "this worker is draining, take another one");
  if (const Epoch fence = FenceOf(key.session); key.epoch < fence) {
    return refuse(Reason::kEpochStale, Detail::kNone, "epoch " + std::to_string(fence.value) + " owns the session");
  }
  if (key.epoch.value == 0) return refuse(Reason::kBadRequest, Detail::kLimit, "epochs begin at 1");
  if (request.cache_salt.size() > kCacheSaltBytesMax) {
    return refuse(Reason::kBadRequest, Detail::kLimit, "the cache salt is longer than " + std::to_string(kCacheSaltBytesMax) + " bytes");
  }
  if (request.reserve_tokens > config.context_tokens) {
    return refuse(Reason::kBadRequest, Detail::kLimit, "asks for " + std::to_string(request.reserve_tokens) + " tokens, a session has at most " +
                                                           std::to_string(config.context_tokens));
  }
  if (live && live->key.epoch == key.epoch && live->cache_salt != request.cache_salt) {
    return refuse(Reason::kBadRequest, Detail::kNone, "the session is open with another cache salt");
  }
  return std::nullopt;
}

std::optional<std::vector<SessionId>> HotKv::Impl::ChooseVictims(uint32_t need, const SessionRecord* superseded, Detail& lacking) const {
  uint64_t reserved = sequences.reserved_tokens();
  uint64_t sequences_free = sequences.free_count();
  if (superseded) {
    reserved -= sequences.reserved(superseded->sequence);
    ++sequences_free;
  }
  std::vector<SessionId> victims;
  for (const auto& [stamp, id] : idle) {
    if (sequences_free > 0 && reserved + need <= config.budget_tokens) return victims;
    if (superseded && id == superseded->key.session) continue;
    const SessionRecord& victim = sessions.at(id);
    reserved -= victim.reserved_tokens;
    ++sequences_free;
    victims.push_back(id);
  }
  if (sequences_free > 0 && reserved + need <= config.budget_tokens) return victims;
  lacking = sequences_free == 0 ? Detail::kSessions : Detail::kTokens;
  return std::nullopt;
}

OpenReply HotKv::Impl::ReplyTo(const SessionRecord& session) const {
  OpenReply reply;
  reply.incarnation = config.incarnation;
  reply.past_len = session.timeline.past_len();
  reply.digest = session.timeline.digest();
  reply.next_step = session.next_step();
  reply.credit = CreditOf(session);
  reply.reserved_tokens = session.reserved_tokens;
  return reply;
}

Refusal HotKv::Impl::RefuseForRoom(const SessionKey& key, uint32_t need, Detail lacking, Time now) {
  Refusal refusal = Refuse(key, Reason::kCapacity, lacking,
                           EpochText(key) + ": no room for " + std::to_string(need) + " tokens: " + std::to_string(sequences.reserved_tokens()) +
                               " of " + std::to_string(config.budget_tokens) + " are reserved, " + std::to_string(sequences.free_count()) +
                               " of " + std::to_string(config.sessions_max) + " sequences are free, and the idle sessions are too few");
  refusal.retry_after = idle.empty() ? kRetryMax : std::clamp<Duration>(idle.begin()->first + config.ttl - now, kRetryMin, kRetryMax);
  return refusal;
}

SessionRecord& HotKv::Impl::CreateSession(const OpenRequest& request, uint32_t reserved, std::optional<SequenceId> taken_over, Time now) {
  const SessionId& id = request.key.session;
  SessionRecord& session = sessions.try_emplace(id, request.key, request.cache_salt).first->second;
  session.reserved_tokens = reserved;
  session.stamp = now;
  if (taken_over) {
    session.sequence = *taken_over;
    sequences.TakeOver(session.sequence, reserved);
  } else {
    session.sequence = sequences.Take(reserved);
  }
  MESHNET_CHECK(idle.insert({session.stamp, id}).second);
  UpdateIdle(session);
  return session;
}

OpenDecision HotKv::Open(const OpenRequest& request, Time now) {
  Impl& kv = *impl_;
  const SessionKey& key = request.key;
  const auto found = kv.sessions.find(key.session);
  SessionRecord* old = found == kv.sessions.end() ? nullptr : &found->second;
  if (std::optional<Refusal> refusal = kv.CheckOpen(request, old)) return std::move(*refusal);
  if (old && old->key.epoch == key.epoch) return OpenAccepted{kv.ReplyTo(*old), {}};

  const uint32_t need = request.reserve_tokens == 0 ? kv.config.context_tokens : request.reserve_tokens;
  Detail lacking = Detail::kNone;
  const std::optional<std::vector<SessionId>> victims = kv.ChooseVictims(need, old, lacking);
  if (!victims) return kv.RefuseForRoom(key, need, lacking, now);

  OpenAccepted accepted;
  // Before a victim's tombstone can push it out of a full table.
  const StepSeq last = TakeLast(kv.tombstones, key);
  for (const SessionId& id : *victims) {
    const auto victim = kv.sessions.find(id);
    const SessionEnd end = kv.due(victim->second.stamp, now) ? SessionEnd::kEvictedTtl : SessionEnd::kEvictedLru;
    MESHNET_CHECK(kv.EndSession(victim, end, now, accepted.effects).empty());
  }
  std::optional<Epoch> superseded;
  std::optional<SequenceId> taken_over;
  std::vector<Ticket> fenced;
  if (old) {
    superseded = old->key.epoch;
    const SequenceId sequence = old->sequence;
    fenced = kv.EndSession(found, SessionEnd::kSuperseded, now, accepted.effects);
    if (kv.sequences.closing(sequence)) taken_over = sequence;
  }
  SessionRecord& session = kv.CreateSession(request, need, taken_over, now);
  session.last = session.acked = last;

  Refusal stale;
  stale.reason = Reason::kEpochStale;
  stale.message = EpochText(key) + " owns the session now";
  kv.AddDropped(kv.RefuseAll(fenced, stale));
  accepted.reply = kv.ReplyTo(session);
  accepted.reply.superseded = superseded;
  return accepted;
}

}  // namespace meshnet::kv
