#include "session/recovery.h"

#include <algorithm>

#include "base/check.h"

namespace meshnet {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Failure = AnswerFailure::Kind;

constexpr uint32_t kTransportTries = 3;      // sends of one call without an answer before its stage counts as lost
constexpr uint32_t kExecTries = 2;           // engine failures of one step before a new epoch
constexpr uint32_t kExecTriesMax = 4;        // … before the answer fails: the last two were on an epoch of their own each
constexpr uint32_t kCancelTries = 3;         // steps that a late Cancel of an earlier answer took along
constexpr uint32_t kCreditTries = 20;
constexpr uint32_t kRePrefillTries = 3;      // in one epoch, before a new one
constexpr uint32_t kCapacityTries = 8;       // of an Open before anything was delivered
constexpr uint32_t kMismatchTries = 3;       // an Open to a worker that is not what it described
constexpr uint32_t kBugEpochs = 2;           // new epochs against what should not happen at all
constexpr uint32_t kEpochsMax = 64;          // against a world that evicts, restarts and breaks for ever
constexpr uint32_t kEvictionsUntold = 12;    // new epochs of an answer that has not begun to tell anything: its caller can wait as well
constexpr uint32_t kExpiriesMax = 4;         // of a session at one stage, while an answer goes on: the stage's TTL is shorter than the others take
constexpr Duration kCapacityPatience = seconds(2);
constexpr Duration kEvictedPauseMax = seconds(30);

// 10 ms, 20 ms, 40 ms … up to `last`, stretched by up to half so that sessions fall out of step.
Duration Backoff(uint32_t count, uint32_t jitter, Duration last) {
  Duration delay = std::min<Duration>(milliseconds(10) * (int64_t{1} << std::min(count, 20u)) / 2, last);
  return delay + delay * jitter / 2048;
}

Action ResendSame(Duration delay) { return {.move = Move::kResendSame, .delay = delay}; }
Action RePrefillFrom(PastLen from) { return {.move = Move::kRePrefillFrom, .from = from}; }
Action Fail(Failure failure) { return {.move = Move::kFail, .failure = failure}; }

Action Repair(const Situation& s) {
  if (s.epochs >= kEpochsMax) return Fail(Failure::kRouteDown);
  // The first repair is not delayed; later ones are, since the last did not help.
  return {.move = Move::kRepairRoute, .delay = s.epochs <= 1 ? Duration(0) : Backoff(s.epochs, s.jitter, seconds(2))};
}

// Against what no correct pair of driver and shard would do to each other.
Action NewEpochAgainstBug(const Situation& s) {
  // Epochs that an eviction or a restart asked for say nothing about a bug.
  if (s.bug_epochs >= kBugEpochs) return Fail(Failure::kInternal);
  return {.move = Move::kNewEpoch, .against_bug = true};
}

Action AfterEviction(const Situation& s) {
  if (s.epochs >= (s.generating ? kEpochsMax : kEvictionsUntold)) return Fail(Failure::kCapacity);
  // Sessions that evict each other would do so for ever. The pauses grow until one of them finishes meanwhile, so they have to become longer
  // than a whole answer takes.
  return {.move = Move::kNewEpoch, .delay = s.epochs == 0 ? Duration(0) : Backoff(s.epochs, s.jitter, kEvictedPauseMax)};
}

Action AfterCacheMiss(Detail detail, const Situation& s) {
  switch (detail) {
    case Detail::kPastMismatch:
      if (!s.shard_agreed || s.count > kRePrefillTries) return NewEpochAgainstBug(s);
      return RePrefillFrom(std::min(s.agreed, *s.shard_agreed));
    case Detail::kDigestMismatch:
      // A digest of nothing never differs, so position 0 always works; twice means that something else is wrong.
      if (s.count > 1) return NewEpochAgainstBug(s);
      return RePrefillFrom(PastLen(0));
    case Detail::kEvictedTtl:
      // Whoever takes the room of others lets go some day; a time that is too short stays too short.
      if (s.count > kExpiriesMax) return Fail(Failure::kCapacity);
      return AfterEviction(s);
    case Detail::kNoSession:
    case Detail::kEvictedLru:
    case Detail::kLost:
      return AfterEviction(s);
    case Detail::kIncarnation:
    case Detail::kDrained:
      return Repair(s);
    case Detail::kNone:
    case Detail::kSessions:
    case Detail::kTokens:
    case Detail::kShape:
    case Detail::kEncoding:
    case Detail::kToken:
    case Detail::kNonFinite:
    case Detail::kLimit:
      return AfterEviction(s);  // a detail that does not belong here: the KV is not there, which is all that counts
  }
  MESHNET_CHECK(false && "closed enum");
}

Action AfterCapacity(const Refusal& refusal, const Situation& s) {
  if (s.asked == Asked::kStep) return AfterEviction(s);  // a step reserves nothing, so its session must be gone
  const Duration own = Backoff(s.count, s.jitter, seconds(1));
  if (!s.generating) {
    // Nothing was delivered: a short wait for a session that is just closing, then the caller may queue or go elsewhere.
    if (s.count > kCapacityTries || refusal.retry_after.value_or(Duration(0)) > kCapacityPatience) return Fail(Failure::kCapacity);
  }
  return {.move = Move::kWaitForCapacity, .delay = std::min<Duration>(std::max(own, refusal.retry_after.value_or(Duration(0))), seconds(1))};
}

Action AfterBadRequest(const Situation& s) {
  // An Open carries nothing of the user's.
  return Fail(s.asked == Asked::kOpen ? Failure::kInternal : Failure::kBadRequest);
}

// Once again, then from the start; a step on which the engine fails even so would fail for ever.
Action AfterExecFailure(const Situation& s) {
  if (s.count < kExecTries) return ResendSame(Duration(0));
  if (s.count >= kExecTriesMax || s.epochs >= kEpochsMax) return Fail(Failure::kInternal);
  return {.move = Move::kNewEpoch};
}

Action AfterRefusal(const Refusal& refusal, const Situation& s) {
  switch (refusal.reason) {
    case Reason::kCacheMiss:
      return AfterCacheMiss(refusal.detail, s);
    case Reason::kEpochStale:
      return {.move = Move::kStop};
    case Reason::kCapacity:
      return AfterCapacity(refusal, s);
    case Reason::kContextExceeded:
      if (s.generating && s.asked == Asked::kStep) return {.move = Move::kEndAtLength};
      return Fail(Failure::kContextExceeded);
    case Reason::kStepConflict:
      return NewEpochAgainstBug(s);
    case Reason::kStepGap:
    case Reason::kStepReplyGone:
      if (!s.shard_agreed || s.count > kRePrefillTries) return NewEpochAgainstBug(s);
      // The reply that is gone held rows that only computing them again brings back.
      return RePrefillFrom(std::min({s.agreed, *s.shard_agreed, s.start}));
    case Reason::kCreditExceeded:
      if (s.count > kCreditTries) return NewEpochAgainstBug(s);
      return {.move = Move::kWaitForCredit, .delay = refusal.retry_after.value_or(milliseconds(10))};
    case Reason::kTruncateUnsupported:
      if (s.start == PastLen(0)) return NewEpochAgainstBug(s);
      return RePrefillFrom(refusal.nearest_past_len && *refusal.nearest_past_len < s.start ? *refusal.nearest_past_len : PastLen(0));
    case Reason::kModelMismatch:
    case Reason::kRangeMismatch:
    case Reason::kBoundaryMismatch:
    case Reason::kProtocolMismatch:
      // The route's next Describe tells what the worker really is; if that says the same as before, one of us is wrong.
      if (s.count > kMismatchTries) return Fail(Failure::kRouteDown);
      return Repair(s);
    case Reason::kBadRequest:
      return AfterBadRequest(s);
    case Reason::kUnauthenticated:
    case Reason::kPermissionDenied:
      return Fail(Failure::kRouteDown);
    case Reason::kDraining:
    case Reason::kPoisoned:
      return Repair(s);
    case Reason::kExecFailed:
      return AfterExecFailure(s);
    case Reason::kCancelled:
      if (s.count <= kCancelTries) return ResendSame(Duration(0));
      return NewEpochAgainstBug(s);
    case Reason::kDeadlineExceeded:
      // The stage lives and nothing ran: its line is long. The caller gives the step more time.
      return ResendSame(Duration(0));
  }
  MESHNET_CHECK(false && "closed enum");
}

}  // namespace

const char* Name(Move move) {
  switch (move) {
    case Move::kResendSame: return "resend-same";
    case Move::kWaitForCredit: return "wait-for-credit";
    case Move::kWaitForCapacity: return "wait-for-capacity";
    case Move::kRePrefillFrom: return "re-prefill-from";
    case Move::kNewEpoch: return "new-epoch";
    case Move::kRepairRoute: return "repair-route";
    case Move::kEndAtLength: return "end-at-length";
    case Move::kFail: return "fail";
    case Move::kStop: return "stop";
  }
  MESHNET_CHECK(false && "closed enum");
}

std::string TroubleText(const Trouble& trouble) {
  if (const auto* fault = std::get_if<TransportFault>(&trouble)) return "no answer" + (fault->message.empty() ? "" : ": " + fault->message);
  if (const auto* violation = std::get_if<Violation>(&trouble)) return "wrong answer: " + violation->message;
  const Refusal& refusal = std::get<Refusal>(trouble);
  std::string text = Name(refusal.reason);
  if (refusal.detail != Detail::kNone) text += std::string(" (") + Name(refusal.detail) + ")";
  return refusal.message.empty() ? text : text + ": " + refusal.message;
}

uint32_t TroubleCount::Add(size_t stage, const Trouble& trouble, std::optional<PastLen> start) {
  // A long replay meets what is rare more than once, each time in another step.
  const auto* refusal = std::get_if<Refusal>(&trouble);
  const bool of_the_call = std::holds_alternative<TransportFault>(trouble) || (refusal && refusal->reason == Reason::kExecFailed);
  if (!of_the_call) start.reset();
  return ++counts_[{stage, Kind(trouble), start}];
}

int TroubleCount::Kind(const Trouble& trouble) {
  if (std::holds_alternative<TransportFault>(trouble)) return -1;
  if (std::holds_alternative<Violation>(trouble)) return -2;
  const Refusal& refusal = std::get<Refusal>(trouble);
  return static_cast<int>(refusal.reason) * 256 + static_cast<int>(refusal.detail);
}

Action Decide(const Trouble& trouble, const Situation& situation) {
  if (const auto* refusal = std::get_if<Refusal>(&trouble)) return AfterRefusal(*refusal, situation);
  if (std::holds_alternative<Violation>(trouble)) return NewEpochAgainstBug(situation);
  if (situation.count >= kTransportTries) return Repair(situation);
  return ResendSame(situation.count == 1 ? Duration(0) : Backoff(4, situation.jitter, seconds(1)));
}

}  // namespace meshnet
