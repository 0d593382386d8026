// Admit: VALIDATE and ADMIT of one step. The order of checks is part of the protocol; the first that fails answers, and changes nothing.
#include <string>
#include <utility>

#include "base/check.h"
#include "kv/hot_kv_impl.h"

namespace meshnet::kv {
namespace {

constexpr Duration kCreditRetry = std::chrono::milliseconds(10);

std::string Count(uint64_t number) { return std::to_string(number); }
// Of the full logits that a step asks for.
uint64_t LogitsBytes(const Step& step, uint32_t vocabulary_size) {
  if (!step.logits_wanted || step.rows == RowsWanted::kNone) return 0;
  return (step.rows == RowsWanted::kAll ? step.tokens.size() : 1) * vocabulary_size * sizeof(float);
}

std::string EpochText(const Step& step) { return "epoch " + Count(step.key.epoch.value) + ", step " + Count(step.seq.value) + ": "; }

}  // namespace

// Shard state, fence, incarnation, existence.
std::optional<Refusal> HotKv::Impl::CheckOwner(const Step& step) {
  const SessionKey& key = step.key;
  auto refuse = [&](Reason reason, Detail detail, std::string cause) { return Refuse(key, reason, detail, EpochText(step) + std::move(cause)); };
  if (state == ShardState::kPoisoned) return refuse(Reason::kPoisoned, Detail::kNone, "an invariant broke, this worker serves no more");
  if (const Epoch fence = FenceOf(key.session); key.epoch < fence) {
    return refuse(Reason::kEpochStale, Detail::kNone, "epoch " + Count(fence.value) + " owns the session");
  }
  if (step.incarnation != config.incarnation) {
    return refuse(Reason::kCacheMiss, Detail::kIncarnation, "the worker was started anew since the session was opened");
  }
  if (Find(key)) return std::nullopt;
  const Tombstone* tombstone = tombstones.Find(key.session);
  if (!tombstone || tombstone->fence != key.epoch) return refuse(Reason::kCacheMiss, Detail::kNoSession, "no such session is open here");
  return refuse(Reason::kCacheMiss, DetailOf(tombstone->end), std::string("the session is gone: ") + Name(tombstone->end));
}

// A step_seq that was seen before, or comes too early.
std::optional<StepDecision> HotKv::Impl::CheckRepeat(const SessionRecord& session, const Step& step, const Fingerprint& fingerprint) {
  auto refuse = [&](Reason reason, Detail detail, std::string cause) {
    return Refuse(step.key, reason, detail, EpochText(step) + std::move(cause));
  };
  if (step.seq.value == 0) return refuse(Reason::kBadRequest, Detail::kLimit, "steps are numbered from 1");
  if (const KeptReply* reply = session.FindReply(step.seq)) {
    if (reply->fingerprint != fingerprint) return refuse(Reason::kStepConflict, Detail::kNone, "was committed with other content");
    ++counts.replays;
    return StepReplayed{reply->result};
  }
  if (step.seq <= session.last) return refuse(Reason::kStepReplyGone, Detail::kNone, "was committed and its reply acknowledged");
  if (const QueuedStep* queued = session.FindQueued(step.seq)) {
    if (queued->fingerprint != fingerprint) return refuse(Reason::kStepConflict, Detail::kNone, "is queued with other content");
    return StepJoined{Ticket{step.key, queued->seq, queued->serial}};
  }
  return std::nullopt;
}

std::optional<Refusal> HotKv::Impl::CheckFields(const SessionRecord& session, const Step& step, const FieldsCheck& check) {
  auto refuse = [&](Detail detail, std::string cause) {
    return Refuse(step.key, Reason::kBadRequest, detail, EpochText(step) + std::move(cause));
  };
  if (step.tokens.empty() || step.tokens.size() > config.chunk_rows_max) {
    return refuse(Detail::kLimit, Count(step.tokens.size()) + " tokens, a step has 1 to " + Count(config.chunk_rows_max));
  }
  if (step.kind == StepKind::kDecode && step.tokens.size() != 1) {
    return refuse(Detail::kShape, "a decode step of " + Count(step.tokens.size()) + " tokens, it has exactly one");
  }
  if (step.ack > session.last) {
    return refuse(Detail::kLimit, "acknowledges step " + Count(step.ack.value) + ", committed are " + Count(session.last.value));
  }
  std::optional<Refusal> fields = check ? check() : std::nullopt;
  // The values of a frame are looked at last.
  const bool values = fields && fields->detail == Detail::kNonFinite;
  if (fields && !values) return Refuse(step.key, std::move(*fields));
  for (const Token token : step.tokens) {
    if (token < 0 || static_cast<uint32_t>(token) >= config.vocabulary_size) {
      return refuse(Detail::kToken, "token id " + std::to_string(token) + " is not in [0, " + Count(config.vocabulary_size) + ")");
    }
  }
  if (values) return Refuse(step.key, std::move(*fields));
  return std::nullopt;
}

// Expected past length and digest, against what the session will hold once its queued steps are committed.
std::optional<Refusal> HotKv::Impl::CheckPosition(const SessionRecord& session, const Step& step) {
  const PastLen projected = session.timeline.projected_len();
  const bool goes_back = step.start < projected;
  if (step.start > projected || (goes_back && (step.kind == StepKind::kDecode || !session.queue.empty()))) {
    std::string cause = "starts at " + Count(step.start.value) + ", but the session holds " + Count(session.timeline.past_len().value) + " tokens";
    if (!session.queue.empty()) cause += " and " + Count(session.timeline.queued_tokens()) + " are queued";
    return Refuse(step.key, Reason::kCacheMiss, Detail::kPastMismatch, EpochText(step) + std::move(cause));
  }
  PrefixDigest expected;
  if (goes_back) {
    expected = session.timeline.DigestAt(step.start);
  } else {
    expected = session.queue.empty() ? session.timeline.digest() : session.queue.back().digest_after;
  }
  if (step.prefix_digest != expected) {
    return Refuse(step.key, Reason::kCacheMiss, Detail::kDigestMismatch,
                  EpochText(step) + "the first " + Count(step.start.value) + " tokens are not the ones the session holds");
  }
  return goes_back ? CheckTruncation(session, step) : std::nullopt;
}

std::optional<Refusal> HotKv::Impl::CheckTruncation(const SessionRecord& session, const Step& step) {
  if (step.start.value == 0) return std::nullopt;
  std::string cause;
  switch (config.truncation_class) {
    case TruncationClass::kFull: return std::nullopt;
    case TruncationClass::kWhole: cause = "this range keeps a state that cannot be cut"; break;
    case TruncationClass::kWindow: {
      // The first new token looks back over a whole window, so all of it must still be there.
      const PastLen intact = probe.IntactFrom(session.sequence);
      if (intact.value == 0 || static_cast<uint64_t>(intact.value) + config.window_tokens <= step.start.value) return std::nullopt;
      cause = "the sliding window of " + Count(config.window_tokens) + " before it is gone, cells begin at " + Count(intact.value);
      break;
    }
  }
  Refusal refusal = Refuse(step.key, Reason::kTruncateUnsupported, Detail::kNone,
                           EpochText(step) + "cannot go back to " + Count(step.start.value) + ": " + cause + "; start at 0");
  refusal.nearest_past_len = PastLen(0);
  return refusal;
}

// Context limit, credit, deadline.
std::optional<Refusal> HotKv::Impl::CheckRoom(const SessionRecord& session, const Step& step, Time now) {
  const uint64_t end = static_cast<uint64_t>(step.start.value) + step.tokens.size();
  if (end > session.reserved_tokens) {
    return Refuse(step.key, Reason::kContextExceeded, Detail::kNone,
                  EpochText(step) + "ends at " + Count(end) + ", the session reserved " + Count(session.reserved_tokens));
  }
  // An acknowledgement counts here already, but is applied only if the step is admitted.
  const uint64_t acked = std::max(session.acked, step.ack).value;
  const uint64_t pending = session.timeline.queued_tokens() + step.tokens.size();
  const uint64_t logits = LogitsBytes(step, config.vocabulary_size);
  const uint64_t kept_logits = session.LogitsBytesAfter(StepSeq(acked));
  const bool logits_fit = logits == 0 || kept_logits == 0 || kept_logits + logits <= config.logits_bytes_max;
  if (step.seq.value > acked + config.window_steps || pending > config.pending_tokens_max || !logits_fit) {
    Refusal refusal = Refuse(step.key, Reason::kCreditExceeded, Detail::kNone,
                             EpochText(step) + "credit ends at step " + Count(acked + config.window_steps) + ", " +
                                 Count(config.pending_tokens_max) + " queued tokens and " + Count(config.logits_bytes_max) +
                                 " bytes of unacknowledged logits");
    refusal.retry_after = kCreditRetry;
    return refusal;
  }
  if (step.deadline && now >= *step.deadline) {
    return Refuse(step.key, Reason::kDeadlineExceeded, Detail::kNone, EpochText(step) + "its deadline has passed");
  }
  return std::nullopt;
}

StepDecision HotKv::Admit(const Step& step, const FieldsCheck& fields, Time now) {
  Impl& kv = *impl_;
  if (std::optional<Refusal> refusal = kv.CheckOwner(step)) return std::move(*refusal);
  SessionRecord& session = *kv.Find(step.key);
  if (step.seq > session.next_step()) {
    return kv.Refuse(step.key, Reason::kStepGap, Detail::kNone, EpochText(step) + "next is step " + Count(session.next_step().value));
  }
  const Fingerprint fingerprint = FingerprintOf(step);
  if (std::optional<StepDecision> repeat = kv.CheckRepeat(session, step, fingerprint)) return std::move(*repeat);
  if (std::optional<Refusal> refusal = kv.CheckFields(session, step, fields)) return std::move(*refusal);
  if (std::optional<Refusal> refusal = kv.CheckPosition(session, step)) return std::move(*refusal);
  if (std::optional<Refusal> refusal = kv.CheckRoom(session, step, now)) return std::move(*refusal);

  MESHNET_CHECK(step.seq == session.next_step());
  QueuedStep queued;
  queued.serial = kv.next_serial++;
  queued.seq = step.seq;
  queued.start = step.start;
  queued.token_count = static_cast<uint32_t>(step.tokens.size());
  queued.fingerprint = fingerprint;
  queued.digest_after = session.timeline.Queue(step.start, step.tokens);
  queued.deadline = step.deadline;
  queued.logits_bytes = LogitsBytes(step, kv.config.vocabulary_size);
  session.Acknowledge(step.ack);
  session.queue.push_back(queued);
  kv.UpdateIdle(session);
  return StepAdmitted{Ticket{step.key, step.seq, queued.serial}};
}

}  // namespace meshnet::kv
