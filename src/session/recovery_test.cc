#include "session/recovery.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace meshnet {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Kind = AnswerFailure::Kind;
using ::testing::HasSubstr;

// A step at 40 of a session of which all stages hold 50, the refusing one 45; the first trouble of its kind, nothing delivered yet.
Situation Usual() {
  Situation s;
  s.start = PastLen(40);
  s.agreed = PastLen(50);
  s.shard_agreed = PastLen(45);
  return s;
}

Refusal Refused(Reason reason, Detail detail = Detail::kNone) {
  Refusal refusal;
  refusal.reason = reason;
  refusal.detail = detail;
  return refusal;
}

constexpr Detail kNone = Detail::kNone;

struct Row {
  Reason reason;
  Detail detail;
  Move first;        // the first time, nothing delivered
  Move generating;   // the first time, tokens delivered
  Move again;        // after many of the same and many epochs
  Move open;         // as the answer to an Open
};

const Row kRows[] = {
    {Reason::kCacheMiss, Detail::kNoSession, Move::kNewEpoch, Move::kNewEpoch, Move::kFail, Move::kNewEpoch},
    {Reason::kCacheMiss, Detail::kEvictedLru, Move::kNewEpoch, Move::kNewEpoch, Move::kFail, Move::kNewEpoch},
    {Reason::kCacheMiss, Detail::kEvictedTtl, Move::kNewEpoch, Move::kNewEpoch, Move::kFail, Move::kNewEpoch},
    {Reason::kCacheMiss, Detail::kPastMismatch, Move::kRePrefillFrom, Move::kRePrefillFrom, Move::kFail, Move::kRePrefillFrom},
    {Reason::kCacheMiss, Detail::kDigestMismatch, Move::kRePrefillFrom, Move::kRePrefillFrom, Move::kFail, Move::kRePrefillFrom},
    {Reason::kCacheMiss, Detail::kIncarnation, Move::kRepairRoute, Move::kRepairRoute, Move::kFail, Move::kRepairRoute},
    {Reason::kCacheMiss, Detail::kLost, Move::kNewEpoch, Move::kNewEpoch, Move::kFail, Move::kNewEpoch},
    {Reason::kCacheMiss, Detail::kDrained, Move::kRepairRoute, Move::kRepairRoute, Move::kFail, Move::kRepairRoute},
    {Reason::kEpochStale, kNone, Move::kStop, Move::kStop, Move::kStop, Move::kStop},
    {Reason::kCapacity, Detail::kSessions, Move::kNewEpoch, Move::kNewEpoch, Move::kFail, Move::kWaitForCapacity},
    {Reason::kCapacity, Detail::kTokens, Move::kNewEpoch, Move::kNewEpoch, Move::kFail, Move::kWaitForCapacity},
    {Reason::kContextExceeded, kNone, Move::kFail, Move::kEndAtLength, Move::kFail, Move::kFail},
    {Reason::kStepConflict, kNone, Move::kNewEpoch, Move::kNewEpoch, Move::kFail, Move::kNewEpoch},
    {Reason::kStepGap, kNone, Move::kRePrefillFrom, Move::kRePrefillFrom, Move::kFail, Move::kRePrefillFrom},
    {Reason::kStepReplyGone, kNone, Move::kRePrefillFrom, Move::kRePrefillFrom, Move::kFail, Move::kRePrefillFrom},
    {Reason::kCreditExceeded, kNone, Move::kWaitForCredit, Move::kWaitForCredit, Move::kFail, Move::kWaitForCredit},
    {Reason::kTruncateUnsupported, kNone, Move::kRePrefillFrom, Move::kRePrefillFrom, Move::kRePrefillFrom, Move::kRePrefillFrom},
    {Reason::kModelMismatch, kNone, Move::kRepairRoute, Move::kRepairRoute, Move::kFail, Move::kRepairRoute},
    {Reason::kRangeMismatch, kNone, Move::kRepairRoute, Move::kRepairRoute, Move::kFail, Move::kRepairRoute},
    {Reason::kBoundaryMismatch, kNone, Move::kRepairRoute, Move::kRepairRoute, Move::kFail, Move::kRepairRoute},
    {Reason::kBadRequest, Detail::kShape, Move::kFail, Move::kFail, Move::kFail, Move::kFail},
    {Reason::kBadRequest, Detail::kEncoding, Move::kFail, Move::kFail, Move::kFail, Move::kFail},
    {Reason::kBadRequest, Detail::kToken, Move::kFail, Move::kFail, Move::kFail, Move::kFail},
    {Reason::kBadRequest, Detail::kNonFinite, Move::kFail, Move::kFail, Move::kFail, Move::kFail},
    {Reason::kBadRequest, Detail::kLimit, Move::kFail, Move::kFail, Move::kFail, Move::kFail},
    {Reason::kUnauthenticated, kNone, Move::kFail, Move::kFail, Move::kFail, Move::kFail},
    {Reason::kPermissionDenied, kNone, Move::kFail, Move::kFail, Move::kFail, Move::kFail},
    {Reason::kDraining, kNone, Move::kRepairRoute, Move::kRepairRoute, Move::kFail, Move::kRepairRoute},
    {Reason::kExecFailed, kNone, Move::kResendSame, Move::kResendSame, Move::kFail, Move::kResendSame},
    {Reason::kPoisoned, kNone, Move::kRepairRoute, Move::kRepairRoute, Move::kFail, Move::kRepairRoute},
    {Reason::kCancelled, kNone, Move::kResendSame, Move::kResendSame, Move::kFail, Move::kResendSame},
    {Reason::kDeadlineExceeded, kNone, Move::kResendSame, Move::kResendSame, Move::kResendSame, Move::kResendSame},
    {Reason::kProtocolMismatch, kNone, Move::kRepairRoute, Move::kRepairRoute, Move::kFail, Move::kRepairRoute},
};

TEST(RecoveryTest, EachReasonHasItsAnswer) {
  std::set<Reason> seen;
  for (const Row& row : kRows) {
    SCOPED_TRACE(std::string(Name(row.reason)) + " " + Name(row.detail));
    seen.insert(row.reason);
    const Refusal refusal = Refused(row.reason, row.detail);
    Situation s = Usual();
    EXPECT_STREQ(Name(Decide(refusal, s).move), Name(row.first));
    s.generating = true;
    EXPECT_STREQ(Name(Decide(refusal, s).move), Name(row.generating));
    s.generating = false;
    s.count = 100;
    s.epochs = s.bug_epochs = 100;
    EXPECT_STREQ(Name(Decide(refusal, s).move), Name(row.again));
    s = Usual();
    s.asked = Asked::kOpen;
    EXPECT_STREQ(Name(Decide(refusal, s).move), Name(row.open));
  }
  EXPECT_EQ(seen.size(), static_cast<size_t>(Reason::kProtocolMismatch) + 1) << "a reason has no row";
}

TEST(RecoveryTest, EachFailureHasItsKind) {
  struct FailureRow {
    Reason reason;
    Detail detail;
    Asked asked;
    uint32_t many;
    Kind kind;
  };
  const FailureRow rows[] = {
      {Reason::kBadRequest, Detail::kToken, Asked::kStep, 1, Kind::kBadRequest},
      {Reason::kBadRequest, Detail::kLimit, Asked::kOpen, 1, Kind::kInternal},
      {Reason::kContextExceeded, kNone, Asked::kStep, 1, Kind::kContextExceeded},
      {Reason::kContextExceeded, kNone, Asked::kOpen, 1, Kind::kContextExceeded},
      {Reason::kUnauthenticated, kNone, Asked::kStep, 1, Kind::kRouteDown},
      {Reason::kPermissionDenied, kNone, Asked::kOpen, 1, Kind::kRouteDown},
      {Reason::kCapacity, Detail::kTokens, Asked::kOpen, 100, Kind::kCapacity},
      {Reason::kCacheMiss, Detail::kEvictedLru, Asked::kStep, 100, Kind::kCapacity},
      {Reason::kModelMismatch, kNone, Asked::kOpen, 100, Kind::kRouteDown},
      {Reason::kCacheMiss, Detail::kIncarnation, Asked::kStep, 100, Kind::kRouteDown},
      {Reason::kPoisoned, kNone, Asked::kStep, 100, Kind::kRouteDown},
      {Reason::kExecFailed, kNone, Asked::kStep, 100, Kind::kInternal},
      {Reason::kStepConflict, kNone, Asked::kStep, 100, Kind::kInternal},
  };
  for (const FailureRow& row : rows) {
    SCOPED_TRACE(std::string(Name(row.reason)) + " " + Name(row.detail));
    Situation s = Usual();
    s.asked = row.asked;
    s.count = s.epochs = s.bug_epochs = row.many;
    const Action action = Decide(Refused(row.reason, row.detail), s);
    EXPECT_EQ(action.move, Move::kFail);
    EXPECT_EQ(action.failure, row.kind);
  }
}

TEST(RecoveryTest, AnUnknownOutcomeIsAskedAgainThenTheStageIsLost) {
  Situation s = Usual();
  EXPECT_EQ(Decide(TransportFault{"reset"}, s).move, Move::kResendSame);
  EXPECT_EQ(Decide(TransportFault{"reset"}, s).delay, Duration(0));
  s.count = 2;
  EXPECT_EQ(Decide(TransportFault{"reset"}, s).move, Move::kResendSame);
  EXPECT_GT(Decide(TransportFault{"reset"}, s).delay, Duration(0));
  s.count = 3;
  EXPECT_EQ(Decide(TransportFault{"reset"}, s).move, Move::kRepairRoute);
  s.asked = Asked::kOpen;
  EXPECT_EQ(Decide(TransportFault{"reset"}, s).move, Move::kRepairRoute);
}

TEST(RecoveryTest, AWrongAnswerIsNotBelievedTwice) {
  Situation s = Usual();
  EXPECT_EQ(Decide(Violation{"past length 7"}, s).move, Move::kNewEpoch);
  EXPECT_TRUE(Decide(Violation{"past length 7"}, s).against_bug);
  s.bug_epochs = 2;
  EXPECT_EQ(Decide(Violation{"past length 7"}, s).move, Move::kFail);
}

// Found by the simulation: two evictions and then two failed steps ended an answer that one more epoch would have saved.
TEST(RecoveryTest, EpochsAfterEvictionsAreNotHeldAgainstTheWorker) {
  Situation s = Usual();
  s.epochs = 10;
  s.count = 3;
  EXPECT_EQ(Decide(Refused(Reason::kStepConflict), s).move, Move::kNewEpoch);
  EXPECT_TRUE(Decide(Refused(Reason::kStepConflict), s).against_bug);
  EXPECT_FALSE(Decide(Refused(Reason::kCacheMiss, Detail::kEvictedLru), s).against_bug);
}

TEST(RecoveryTest, AStepThatTheEngineFailsOnIsTriedFourTimes) {
  Situation s = Usual();
  const Refusal failed = Refused(Reason::kExecFailed);
  EXPECT_EQ(Decide(failed, s).move, Move::kResendSame);
  for (s.count = 2; s.count < 4; ++s.count) EXPECT_EQ(Decide(failed, s).move, Move::kNewEpoch);
  EXPECT_EQ(Decide(failed, s).move, Move::kFail);
  EXPECT_EQ(Decide(failed, s).failure, Kind::kInternal);
  // Other steps' new epochs are not held against this one, but there are not endlessly many.
  s.count = 2;
  s.epochs = s.bug_epochs = 10;
  EXPECT_EQ(Decide(failed, s).move, Move::kNewEpoch);
  EXPECT_FALSE(Decide(failed, s).against_bug);
  s.epochs = 64;
  EXPECT_EQ(Decide(failed, s).move, Move::kFail);
}

TEST(RecoveryTest, GoesBackToTheHighestPositionThatWorks) {
  Situation s = Usual();
  EXPECT_EQ(Decide(Refused(Reason::kCacheMiss, Detail::kPastMismatch), s).from, PastLen(45));
  s.agreed = PastLen(30);
  EXPECT_EQ(Decide(Refused(Reason::kCacheMiss, Detail::kPastMismatch), s).from, PastLen(30));
  s = Usual();
  s.shard_agreed.reset();  // it holds something else than the journal says
  EXPECT_EQ(Decide(Refused(Reason::kCacheMiss, Detail::kPastMismatch), s).move, Move::kNewEpoch);
  s = Usual();
  EXPECT_EQ(Decide(Refused(Reason::kCacheMiss, Detail::kDigestMismatch), s).from, PastLen(0));
  s.count = 2;
  EXPECT_EQ(Decide(Refused(Reason::kCacheMiss, Detail::kDigestMismatch), s).move, Move::kNewEpoch);
  s = Usual();
  EXPECT_EQ(Decide(Refused(Reason::kStepReplyGone), s).from, PastLen(40));  // its rows must be computed again

  Refusal refusal = Refused(Reason::kTruncateUnsupported);
  EXPECT_EQ(Decide(refusal, s).from, PastLen(0));
  refusal.nearest_past_len = PastLen(32);
  EXPECT_EQ(Decide(refusal, s).from, PastLen(32));
  refusal.nearest_past_len = PastLen(40);  // what was just refused: it would go on for ever
  EXPECT_EQ(Decide(refusal, s).from, PastLen(0));
  s.start = PastLen(0);
  EXPECT_EQ(Decide(refusal, s).move, Move::kNewEpoch);
}

TEST(RecoveryTest, WaitsForRoomOnlyAsLongAsItIsWorthIt) {
  Situation s = Usual();
  s.asked = Asked::kOpen;
  Refusal refusal = Refused(Reason::kCapacity, Detail::kTokens);
  EXPECT_EQ(Decide(refusal, s).delay, milliseconds(10));
  refusal.retry_after = milliseconds(300);
  EXPECT_EQ(Decide(refusal, s).delay, milliseconds(300));
  refusal.retry_after = seconds(600);
  EXPECT_EQ(Decide(refusal, s).move, Move::kFail) << "nothing was delivered: the gateway queues";
  s.generating = true;
  EXPECT_EQ(Decide(refusal, s).move, Move::kWaitForCapacity);
  EXPECT_EQ(Decide(refusal, s).delay, seconds(1));
  s.count = 1000;
  EXPECT_EQ(Decide(refusal, s).move, Move::kWaitForCapacity) << "bounded by the recovery limit alone";
}

TEST(RecoveryTest, SessionsThatEvictEachOtherFallOutOfStep) {
  const Refusal evicted = Refused(Reason::kCacheMiss, Detail::kEvictedLru);
  Situation s = Usual();
  EXPECT_EQ(Decide(evicted, s).delay, Duration(0));
  s.epochs = 1;
  EXPECT_EQ(Decide(evicted, s).delay, milliseconds(10));
  s.epochs = 4;
  EXPECT_EQ(Decide(evicted, s).delay, milliseconds(80));
  s.jitter = 1023;
  EXPECT_GT(Decide(evicted, s).delay, milliseconds(110));
  s.jitter = 0;
  // As long as an answer may take that is computed anew: shorter pauses would let none of them finish.
  s.generating = true;
  s.epochs = 40;
  EXPECT_EQ(Decide(evicted, s).delay, seconds(30));
  s.epochs = 64;
  EXPECT_EQ(Decide(evicted, s).move, Move::kFail);
  s.generating = false;
  s.epochs = 12;
  EXPECT_EQ(Decide(evicted, s).failure, Kind::kCapacity) << "nothing was told: the caller can wait as well";
}

// Found by the simulation: with a TTL of a second, and two later stages that took longer than that for a long prompt, an answer that had begun went on
// for half an hour.
TEST(RecoveryTest, ATtlThatIsTooShortIsNotWaitedFor) {
  Situation s = Usual();
  s.generating = true;
  s.epochs = s.count = 4;
  EXPECT_EQ(Decide(Refused(Reason::kCacheMiss, Detail::kEvictedTtl), s).move, Move::kNewEpoch);
  s.epochs = s.count = 5;
  EXPECT_EQ(Decide(Refused(Reason::kCacheMiss, Detail::kEvictedTtl), s).move, Move::kFail);
  EXPECT_EQ(Decide(Refused(Reason::kCacheMiss, Detail::kEvictedTtl), s).failure, Kind::kCapacity);
  EXPECT_EQ(Decide(Refused(Reason::kCacheMiss, Detail::kEvictedLru), s).move, Move::kNewEpoch);
}

TEST(RecoveryTest, CountsEachTroubleOfEachStageByItself) {
  const PastLen at(8);
  TroubleCount count;
  EXPECT_EQ(count.Add(0, TransportFault{}, at), 1u);
  EXPECT_EQ(count.Add(1, TransportFault{}, at), 1u);
  EXPECT_EQ(count.Add(0, TransportFault{}, at), 2u);
  EXPECT_EQ(count.Add(0, Refused(Reason::kExecFailed), at), 1u);
  // An evicted session is no hint that its positions do not agree.
  EXPECT_EQ(count.Add(0, Refused(Reason::kCacheMiss, Detail::kEvictedLru), at), 1u);
  EXPECT_EQ(count.Add(0, Refused(Reason::kCacheMiss, Detail::kPastMismatch), at), 1u);
  count.Clear();
  EXPECT_EQ(count.Add(0, TransportFault{}, at), 1u);
}

TEST(RecoveryTest, CountsWhatSaysSomethingOfOneStepForEachStep) {
  TroubleCount count;
  for (const Trouble& trouble : {Trouble(TransportFault{}), Trouble(Refused(Reason::kExecFailed))}) {
    EXPECT_EQ(count.Add(0, trouble, PastLen(0)), 1u);
    EXPECT_EQ(count.Add(0, trouble, PastLen(8)), 1u);
    EXPECT_EQ(count.Add(0, trouble, std::nullopt), 1u) << "an Open";
    EXPECT_EQ(count.Add(0, trouble, PastLen(8)), 2u);
  }
  // Where a step starts may be what was changed to answer these.
  EXPECT_EQ(count.Add(0, Refused(Reason::kCacheMiss, Detail::kPastMismatch), PastLen(0)), 1u);
  EXPECT_EQ(count.Add(0, Refused(Reason::kCacheMiss, Detail::kPastMismatch), PastLen(8)), 2u);
}

TEST(RecoveryTest, TellsPeopleWhatWasWrong) {
  Refusal refusal = Refused(Reason::kCacheMiss, Detail::kEvictedLru);
  refusal.message = "stage [0,10)";
  EXPECT_EQ(TroubleText(refusal), "cache-miss (evicted-lru): stage [0,10)");
  EXPECT_THAT(TroubleText(TransportFault{"reset"}), HasSubstr("reset"));
  EXPECT_THAT(TroubleText(Violation{"past length 7"}), HasSubstr("past length 7"));
}

}  // namespace
}  // namespace meshnet
