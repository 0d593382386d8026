// One test for each numbered clause of docs/kv-contract.md; check_clauses.py compares the numbers. The transcript language is explained there,
// and after every line the transcript checks invariants, unchanged state after a refusal, and what the engine holds.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <variant>
#include <vector>

#include "kv_transcript.h"
#include "protocol/prefix_digest.h"

namespace meshnet::kv {
namespace {

class Kv : public KvTranscript {
 public:
  explicit Kv(const std::string& config = "config") { Execute(config); }

  std::string operator()(const std::string& command) {
    std::string answer = Execute(command);
    if (!problem().empty()) ADD_FAILURE() << problem();
    return answer;
  }
  // Admits and settles one step.
  std::string Run(const std::string& name, const std::string& rest) {
    const std::string admitted = (*this)("step " + name + " " + rest);
    if (admitted != "accepted") return admitted;
    const size_t at = rest.find("step=");
    return (*this)("settle " + name + " ok " + rest.substr(at, rest.find(' ', at) - at));
  }
  std::string State() { return kv().Snapshot(); }
};

TEST(KvContractTest, K1OnlyOpenMakesASessionAndOneEpochLives) {
  Kv kv;
  EXPECT_EQ(kv("step s1 epoch=1 step=1 start=0 tokens=1"), "refused cache-miss no-session");
  EXPECT_EQ(kv("cancel s1 epoch=1"), "nothing queued");
  EXPECT_EQ(kv("release s1 epoch=1"), "not-found, nothing changed");
  EXPECT_EQ(kv("open s1 epoch=1 reserve=8"), "accepted seq=0 past=0 next_step=1 credit=4");
  EXPECT_EQ(kv("open s1 epoch=3 reserve=8"), "accepted seq=0 past=0 next_step=1 credit=4 superseded=1 removes=0");
  EXPECT_EQ(kv("stats").substr(0, 14), "serving live=1");
}

TEST(KvContractTest, K2OpenOfALiveEpochIsAQuery) {
  Kv kv;
  EXPECT_EQ(kv("open s1 epoch=1 reserve=65"), "refused bad-request limit");
  EXPECT_EQ(kv("open s1 epoch=0 reserve=8"), "refused bad-request limit");
  EXPECT_EQ(kv("open s1 epoch=1 reserve=8 salt=" + std::string(65, 'x')), "refused bad-request limit");
  EXPECT_EQ(kv("open s1 epoch=1 reserve=8"), "accepted seq=0 past=0 next_step=1 credit=4");
  EXPECT_EQ(kv.Run("s1", "epoch=1 step=1 start=0 tokens=3"), "past=3");
  EXPECT_EQ(kv("step s1 epoch=1 step=2 start=3 tokens=1 ack=1"), "accepted");
  EXPECT_EQ(kv("open s1 epoch=1 reserve=8"), "accepted seq=0 past=3 next_step=3 credit=5");
  EXPECT_EQ(kv("open s1 epoch=1 reserve=64"), "accepted seq=0 past=3 next_step=3 credit=5 reserved=8");
  EXPECT_EQ(kv("open s1 epoch=1 reserve=8 salt=other"), "refused bad-request past=3 next_step=3");
  EXPECT_EQ(kv("open s2 epoch=1 reserve=0"), "accepted seq=1 past=0 next_step=1 credit=4 reserved=64");
}

TEST(KvContractTest, K3SequencesAreDistinctAndTheLowestFree) {
  Kv kv("config sessions=3 budget=192");
  EXPECT_EQ(kv("open s1 epoch=1 reserve=8"), "accepted seq=0 past=0 next_step=1 credit=4");
  EXPECT_EQ(kv("open s2 epoch=1 reserve=8"), "accepted seq=1 past=0 next_step=1 credit=4");
  EXPECT_EQ(kv("open s3 epoch=1 reserve=8"), "accepted seq=2 past=0 next_step=1 credit=4");
  EXPECT_EQ(kv("release s2 epoch=1"), "released removes=1");
  EXPECT_EQ(kv("release s1 epoch=1"), "released removes=0");
  EXPECT_EQ(kv("open s4 epoch=1 reserve=8"), "accepted seq=0 past=0 next_step=1 credit=4");
}

TEST(KvContractDeathTest, ASequenceIsNotUsedBeforeItsRemovalIsConfirmed) {
  Kv kv;
  kv("open s1 epoch=1 reserve=8");
  SessionKey first, second;
  first.session.bytes.fill(1);
  first.epoch = Epoch(1);
  second.session.bytes.fill(2);
  second.epoch = Epoch(1);
  const Released released = kv.kv().Release(first, Time(std::chrono::hours(1)));
  ASSERT_EQ(released.effects.removals, std::vector<SequenceId>{SequenceId(0)});
  OpenRequest request;
  request.key = second;
  request.reserve_tokens = 8;
  ASSERT_TRUE(std::holds_alternative<OpenAccepted>(kv.kv().Open(request, Time(std::chrono::hours(1)))));
  Step step;
  step.key = second;
  step.incarnation = kv.config().incarnation;
  step.seq = StepSeq(1);
  step.prefix_digest = DigestOfPrefix("", {});
  step.tokens = {1};
  const Ticket ticket = std::get<StepAdmitted>(kv.kv().Admit(step, nullptr, Time(std::chrono::hours(1)))).ticket;
  EXPECT_DEATH(kv.kv().Start(ticket, Time(std::chrono::hours(1))), "startable");
  kv.kv().ConfirmRemoved(SequenceId(0));
  EXPECT_TRUE(kv.kv().Start(ticket, Time(std::chrono::hours(1))));
  EXPECT_DEATH(kv.kv().ConfirmRemoved(SequenceId(0)), "removing");
}

TEST(KvContractTest, K4ReservationsStayWithinBudgetAndSequences) {
  Kv kv("config sessions=3 context=64 budget=100");
  kv("open s1 epoch=1 reserve=64");
  kv("step s1 epoch=1 step=1 start=0 tokens=1");
  EXPECT_EQ(kv("open s2 epoch=1 reserve=37"), "refused capacity tokens");
  EXPECT_EQ(kv("open s2 epoch=1 reserve=36"), "accepted seq=1 past=0 next_step=1 credit=4");
  kv("step s2 epoch=1 step=1 start=0 tokens=1");
  EXPECT_EQ(kv("open s3 epoch=1 reserve=1"), "refused capacity tokens");
  EXPECT_NE(kv("stats").find("reserved=100"), std::string::npos);

  Kv few("config sessions=1 context=16 budget=64");
  few("open s1 epoch=1 reserve=1");
  few("step s1 epoch=1 step=1 start=0 tokens=1");
  EXPECT_EQ(few("open s2 epoch=1 reserve=1"), "refused capacity sessions");
  OpenRequest request;
  request.key.session.bytes.fill(2);
  request.key.epoch = Epoch(1);
  const OpenDecision decision = few.kv().Open(request, Time(std::chrono::hours(1)));
  ASSERT_TRUE(std::holds_alternative<Refusal>(decision));
  EXPECT_TRUE(std::get<Refusal>(decision).retry_after.has_value());
}

TEST(KvContractTest, K5ARefusedOpenEvictsNobody) {
  Kv kv("config sessions=3 context=64 budget=100");
  kv("open s1 epoch=1 reserve=30");
  kv("open s2 epoch=1 reserve=30");
  kv("open s3 epoch=1 reserve=40");
  kv("step s3 epoch=1 step=1 start=0 tokens=1");
  const std::string before = kv.State();
  EXPECT_EQ(kv("open s4 epoch=1 reserve=61"), "refused capacity tokens");
  EXPECT_EQ(kv.State(), before);
  EXPECT_EQ(kv("open s4 epoch=1 reserve=60"), "accepted seq=0 past=0 next_step=1 credit=4 removes=0,1");
}

TEST(KvContractTest, K6VictimsAreTheLeastRecentlyCommitted) {
  Kv kv("config sessions=3 context=16 budget=48 ttl_ms=1000");
  for (const char* name : {"s3", "s2", "s1"}) kv(std::string("open ") + name + " epoch=1 reserve=16");
  kv("advance 10");
  EXPECT_EQ(kv.Run("s1", "epoch=1 step=1 start=0 tokens=1"), "past=1");
  kv("advance 10");
  // Neither a query, a refusal, a replay, nor a failed step is use: s2 and s3 were last used at the same time, so the id decides.
  kv("open s2 epoch=1 reserve=16");
  kv("step s2 epoch=1 step=9 start=0 tokens=1");
  kv("step s2 epoch=1 step=1 start=0 tokens=1");
  kv("settle s2 rolled-back step=1");
  kv("step s1 epoch=1 step=1 start=0 tokens=1");
  EXPECT_EQ(kv("open s4 epoch=1 reserve=16"), "accepted seq=1 past=0 next_step=1 credit=4 removes=1");
  EXPECT_EQ(kv("step s2 epoch=1 step=1 start=0 tokens=1"), "refused cache-miss evicted-lru");
  kv("advance 985");
  // s3 was opened 1005 ms ago: past its TTL. s1 committed 995 ms ago: not yet.
  EXPECT_EQ(kv("open s5 epoch=1 reserve=16"), "accepted seq=0 past=0 next_step=1 credit=4 removes=0");
  EXPECT_EQ(kv("step s3 epoch=1 step=1 start=0 tokens=1"), "refused cache-miss evicted-ttl");
  EXPECT_EQ(kv("open s6 epoch=1 reserve=16"), "accepted seq=2 past=0 next_step=1 credit=4 removes=2");
  EXPECT_EQ(kv("step s1 epoch=1 step=2 start=1 tokens=1"), "refused cache-miss evicted-lru");
}

TEST(KvContractTest, K7BusySessionsAndTheAskingOneAreNoVictims) {
  Kv kv("config sessions=2 context=16 budget=32");
  kv("open s1 epoch=1 reserve=16");
  kv("open s2 epoch=1 reserve=16");
  kv("step s1 epoch=1 step=1 start=0 tokens=1");
  kv("advance 120000");
  EXPECT_EQ(kv("expire"), "expired removes=1") << "a busy session does not even expire";
  kv("open s2 epoch=1 reserve=16");
  kv("start s1 step=1");
  kv("advance 120000");
  EXPECT_EQ(kv("open s3 epoch=1 reserve=16"), "accepted seq=1 past=0 next_step=1 credit=4 removes=1") << "the younger s2, because s1 executes";
  kv("step s3 epoch=1 step=1 start=0 tokens=1");
  EXPECT_EQ(kv("open s4 epoch=1 reserve=16"), "refused capacity sessions");

  Kv own("config sessions=3 context=16 budget=20");
  own("open s1 epoch=1 reserve=4");
  own("open s2 epoch=1 reserve=16");
  // The asking session's older epoch goes by superseding; only s2 is a victim.
  EXPECT_EQ(own("open s1 epoch=2 reserve=16"), "accepted seq=0 past=0 next_step=1 credit=4 superseded=1 removes=1,0");
  EXPECT_NE(own("stats").find("lru=1 superseded=1"), std::string::npos);
}

TEST(KvContractTest, K8BelowTheFenceNothingHasAnEffect) {
  Kv kv;
  kv("open s1 epoch=5 reserve=16");
  kv.Run("s1", "epoch=5 step=1 start=0 tokens=2");
  const std::string before = kv.State();
  EXPECT_EQ(kv("open s1 epoch=4 reserve=16"), "refused epoch-stale current=5");
  EXPECT_EQ(kv("step s1 epoch=4 step=2 start=2 tokens=1"), "refused epoch-stale current=5");
  EXPECT_EQ(kv("release s1 epoch=4"), "epoch-stale, nothing changed");
  EXPECT_EQ(kv("cancel s1 epoch=4"), "nothing queued");
  // Nor does anything but an accepted Open raise it.
  EXPECT_EQ(kv("step s1 epoch=6 step=1 start=0 tokens=1"), "refused cache-miss no-session");
  EXPECT_EQ(kv("release s1 epoch=6"), "not-found, nothing changed");
  EXPECT_EQ(kv("open s1 epoch=6 reserve=65"), "refused bad-request limit");
  EXPECT_EQ(kv.State(), before);
  kv("release s1 epoch=5");
  EXPECT_EQ(kv("open s1 epoch=4 reserve=16"), "refused epoch-stale current=5") << "the fence outlives its session";
}

TEST(KvContractTest, K9AHigherEpochRemovesOnlyTheOlderSession) {
  Kv kv;
  kv("open s1 epoch=1 reserve=16");
  kv("open s2 epoch=1 reserve=16");
  kv.Run("s1", "epoch=1 step=1 start=0 tokens=2");
  kv.Run("s2", "epoch=1 step=1 start=0 tokens=4 content=1");
  kv("step s1 epoch=1 step=2 start=2 tokens=1");
  kv("step s1 epoch=1 step=3 start=3 tokens=1");
  EXPECT_EQ(kv("open s1 epoch=2 reserve=16"), "accepted seq=0 past=0 next_step=1 credit=4 superseded=1 removes=0");
  EXPECT_EQ(kv("dropped"), "dropped=3:epoch-stale,2:epoch-stale");
  EXPECT_EQ(kv.Run("s2", "epoch=1 step=2 start=4 tokens=1 content=1"), "past=5");
  EXPECT_EQ(kv.Run("s1", "epoch=2 step=1 start=0 tokens=2"), "past=2");
}

TEST(KvContractTest, K10RoomIsCountedAsIfTheOlderEpochWereGone) {
  Kv kv("config sessions=1 context=64 budget=64");
  kv("open s1 epoch=1 reserve=64");
  EXPECT_EQ(kv("open s1 epoch=2 reserve=64"), "accepted seq=0 past=0 next_step=1 credit=4 superseded=1 removes=0");

  Kv full("config sessions=2 context=64 budget=64");
  full("open s1 epoch=1 reserve=20");
  full("open s2 epoch=1 reserve=40");
  full("step s2 epoch=1 step=1 start=0 tokens=1");
  full.Run("s1", "epoch=1 step=1 start=0 tokens=2");
  EXPECT_EQ(full("open s1 epoch=2 reserve=25"), "refused capacity tokens");
  EXPECT_EQ(full.Run("s1", "epoch=1 step=2 start=2 tokens=1"), "past=3") << "the old session is untouched";
  EXPECT_EQ(full("open s1 epoch=2 reserve=24"), "accepted seq=0 past=0 next_step=1 credit=4 superseded=1 removes=0");
}

TEST(KvContractTest, K11ASupersededStepThatExecutesIsDiscarded) {
  Kv kv("config sessions=1 context=64 budget=64");
  kv("open s1 epoch=1 reserve=40");
  kv("step s1 epoch=1 step=1 start=0 tokens=5 content=1");
  kv("start s1 step=1");
  EXPECT_EQ(kv("open s1 epoch=2 reserve=64"), "accepted seq=0 past=0 next_step=1 credit=4 superseded=1");
  EXPECT_EQ(kv("step s1 epoch=2 step=1 start=0 tokens=3"), "accepted");
  EXPECT_EQ(kv("start s1 step=1 epoch=2"), "not its turn");
  EXPECT_EQ(kv("settle s1 ok step=1 epoch=1"), "refused epoch-stale current=2 removes=0");
  EXPECT_EQ(kv("settle s1 ok step=1 epoch=2"), "past=3");
  // Superseded twice while the first still executes.
  kv("step s1 epoch=2 step=2 start=3 tokens=1");
  kv("start s1 step=2");
  EXPECT_EQ(kv("open s1 epoch=3 reserve=8"), "accepted seq=0 past=0 next_step=1 credit=4 superseded=2");
  EXPECT_EQ(kv("open s1 epoch=4 reserve=64"), "accepted seq=0 past=0 next_step=1 credit=4 superseded=3");
  EXPECT_EQ(kv("open s2 epoch=1 reserve=1"), "refused capacity sessions") << "what a running step holds cannot be evicted";
  EXPECT_EQ(kv("settle s1 ok step=2 epoch=2"), "refused epoch-stale current=4 removes=0");
  EXPECT_EQ(kv("open s2 epoch=1 reserve=1"), "accepted seq=0 past=0 next_step=1 credit=4 removes=0");
}

TEST(KvContractTest, K12ReleaseActsOnExactlyItsEpoch) {
  Kv kv;
  EXPECT_EQ(kv("release s1 epoch=3"), "not-found, nothing changed");
  kv("open s1 epoch=3 reserve=16");
  EXPECT_EQ(kv("release s1 epoch=2"), "epoch-stale, nothing changed");
  EXPECT_EQ(kv("release s1 epoch=4"), "not-found, nothing changed");
  kv("step s1 epoch=3 step=1 start=0 tokens=1");
  kv("step s1 epoch=3 step=2 start=1 tokens=1");
  EXPECT_EQ(kv("release s1 epoch=3"), "released dropped=2:cancelled,1:cancelled removes=0");
  EXPECT_EQ(kv("release s1 epoch=3"), "not-found, nothing changed");
  EXPECT_EQ(kv("release s1 epoch=2"), "epoch-stale, nothing changed");
}

TEST(KvContractTest, K13ReleaseOfARunningStepIsDeferred) {
  Kv kv("config sessions=1 context=64 budget=64");
  kv("open s1 epoch=1 reserve=16");
  kv("step s1 epoch=1 step=1 start=0 tokens=1");
  kv("step s1 epoch=1 step=2 start=1 tokens=1");
  kv("start s1 step=1");
  EXPECT_EQ(kv("release s1 epoch=1"), "deferred dropped=2:cancelled");
  EXPECT_EQ(kv("release s1 epoch=1"), "deferred, nothing changed");
  EXPECT_EQ(kv("step s1 epoch=1 step=1 start=0 tokens=1"), "refused cache-miss no-session");
  EXPECT_EQ(kv("open s2 epoch=1 reserve=16"), "refused capacity sessions") << "the engine has not let go";
  EXPECT_EQ(kv("settle s1 ok step=1"), "refused cancelled removes=0");
  EXPECT_EQ(kv("release s1 epoch=1"), "not-found, nothing changed");
  EXPECT_EQ(kv("open s2 epoch=1 reserve=16"), "accepted seq=0 past=0 next_step=1 credit=4");

  // Opened again at the same epoch meanwhile, with a step of the same number: two lives, told apart.
  Kv again("config sessions=2 context=64 budget=64");
  again("open s1 epoch=1 reserve=16");
  again("step s1 epoch=1 step=1 start=0 tokens=1");
  again("start s1 step=1");
  again("release s1 epoch=1");
  EXPECT_EQ(again("open s1 epoch=1 reserve=16"), "accepted seq=1 past=0 next_step=1 credit=4");
  again("step s1 epoch=1 step=1 start=0 tokens=2 content=1");
  EXPECT_EQ(again("start s1 step=1"), "executing seq=1 start=0");
  EXPECT_EQ(again("settle s1 ok step=1"), "refused cancelled past=0 next_step=2 removes=0") << "the older one";
  EXPECT_EQ(again("settle s1 ok step=1"), "past=2");
}

TEST(KvContractTest, K14TheOwnerHearsWhyItsSessionEnded) {
  Kv kv("config sessions=1 context=16 budget=16 ttl_ms=1000 tombstones=2");
  kv("open s1 epoch=7 reserve=16");
  kv("advance 1000");
  kv("expire");
  EXPECT_EQ(kv("step s1 epoch=7 step=1 start=0 tokens=1"), "refused cache-miss evicted-ttl");
  EXPECT_EQ(kv("step s1 epoch=6 step=1 start=0 tokens=1"), "refused epoch-stale current=7");
  EXPECT_EQ(kv("step s1 epoch=8 step=1 start=0 tokens=1"), "refused cache-miss no-session");
  kv("open s2 epoch=1 reserve=16");
  kv("release s2 epoch=1");
  EXPECT_EQ(kv("step s2 epoch=1 step=1 start=0 tokens=1"), "refused cache-miss no-session");
  // Ten minutes, since twice the TTL is less.
  kv("advance 599999");
  kv("expire");
  EXPECT_EQ(kv("step s1 epoch=7 step=1 start=0 tokens=1"), "refused cache-miss evicted-ttl");
  kv("advance 1");
  kv("expire");
  EXPECT_EQ(kv("step s1 epoch=7 step=1 start=0 tokens=1"), "refused cache-miss no-session");
  // The table holds two: the oldest goes.
  for (const char* name : {"s3", "s4", "s5"}) {
    kv(std::string("open ") + name + " epoch=2 reserve=16");
    kv(std::string("release ") + name + " epoch=2");
    kv("advance 1");
  }
  EXPECT_EQ(kv("open s5 epoch=1 reserve=16"), "refused epoch-stale current=2");
  EXPECT_EQ(kv("open s3 epoch=1 reserve=16"), "accepted seq=0 past=0 next_step=1 credit=4") << "forgotten";
}

TEST(KvContractTest, K15ASessionOpenedAgainGoesOnWithItsNumbers) {
  Kv kv;
  kv("open s1 epoch=1 reserve=16");
  kv.Run("s1", "epoch=1 step=1 start=0 tokens=2");
  kv.Run("s1", "epoch=1 step=2 start=2 tokens=2 ack=1");
  kv("release s1 epoch=1");
  EXPECT_EQ(kv("open s1 epoch=1 reserve=16"), "accepted seq=0 past=0 next_step=3 credit=6");
  EXPECT_EQ(kv("step s1 epoch=1 step=1 start=0 tokens=2"), "refused step-reply-gone past=0 next_step=3") << "a late copy does not execute";
  EXPECT_EQ(kv.Run("s1", "epoch=1 step=3 start=0 tokens=4"), "past=4");
}

TEST(KvContractTest, K16ChecksAnswerInTheirOrder) {
  // Each row breaks one check more than the next, and the earliest answers.
  const std::vector<std::pair<std::string, std::string>> rows = {
      {"incarnation=other step=9 tokens=0 start=9 digest=wrong deadline_ms=0", "cache-miss incarnation"},
      {"step=9 tokens=0 start=9 digest=wrong deadline_ms=0", "step-gap"},
      {"step=1 tokens=0 start=9 digest=wrong deadline_ms=0", "step-reply-gone"},
      {"step=2 tokens=9 start=9 digest=wrong deadline_ms=0", "step-conflict"},
      {"step=3 tokens=0 start=9 digest=wrong deadline_ms=0", "bad-request limit"},
      {"step=3 tokens=32 start=99 digest=wrong deadline_ms=0", "cache-miss past-mismatch"},
      {"step=3 tokens=32 start=40 digest=wrong deadline_ms=0", "cache-miss digest-mismatch"},
      {"step=3 tokens=32 start=9 deadline_ms=0", "truncate-unsupported"},
      {"step=3 tokens=32 start=40 deadline_ms=0", "context-exceeded"},
      {"step=3 tokens=8 start=40 deadline_ms=0", "deadline-exceeded"},
  };
  Kv kv("config context=64 window=2 chunk=32 pending=32 class=whole");
  kv("open s1 epoch=2 reserve=64");
  kv.Run("s1", "epoch=2 step=1 start=0 tokens=20");
  kv.Run("s1", "epoch=2 step=2 start=20 tokens=20 ack=1");
  EXPECT_EQ(kv("step s1 epoch=1 incarnation=other step=9 tokens=0 start=9"), "refused epoch-stale current=2");
  for (const auto& [rest, reason] : rows) {
    EXPECT_EQ(kv("step s1 epoch=2 " + rest).rfind("refused " + reason, 0), 0u) << rest << " -> " << kv("step s1 epoch=2 " + rest);
  }
  kv("step s1 epoch=2 step=3 start=40 tokens=1");
  // Credit comes before the deadline: step 4 is above 1 + 2.
  EXPECT_EQ(kv("step s1 epoch=2 step=4 start=41 tokens=1 deadline_ms=0"), "refused credit-exceeded past=40 next_step=4");
  kv("poison");
  EXPECT_EQ(kv("step s1 epoch=1 incarnation=other step=9 tokens=0 start=9"), "refused poisoned");
}

TEST(KvContractTest, K17ARejectedStepChangesNothing) {
  Kv kv("config context=64 window=2 chunk=16 pending=16 class=whole sessions=3 budget=128");
  kv("open s1 epoch=2 reserve=20");
  kv("open s2 epoch=1 reserve=20");
  kv.Run("s1", "epoch=2 step=1 start=0 tokens=4");
  kv("step s1 epoch=2 step=2 start=4 tokens=1 ack=1");
  const std::string before = kv.State();
  for (const char* rest :
       {"epoch=1 step=3 start=5 tokens=1", "epoch=3 step=3 start=5 tokens=1", "epoch=2 step=3 start=5 tokens=1 incarnation=other",
        "epoch=2 step=9 start=5 tokens=1", "epoch=2 step=1 start=0 tokens=4", "epoch=2 step=2 start=4 tokens=1 content=1",
        "epoch=2 step=0 start=5 tokens=1", "epoch=2 step=3 start=5 tokens=0", "epoch=2 step=3 start=5 tokens=17",
        "epoch=2 step=3 start=5 tokens=1 token=1000", "epoch=2 step=3 start=5 tokens=1 fields=non-finite", "epoch=2 step=3 start=6 tokens=1",
        "epoch=2 step=3 start=5 tokens=1 digest=wrong", "epoch=2 step=3 start=1 tokens=1", "epoch=2 step=3 start=5 tokens=16 ack=1",
        "epoch=2 step=3 start=5 tokens=1 ack=2", "epoch=2 step=3 start=5 tokens=1 deadline_ms=0"}) {
    EXPECT_EQ(kv(std::string("step s1 ") + rest).rfind("refused", 0), 0u) << rest;
    EXPECT_EQ(kv.State(), before) << rest;
  }
  EXPECT_EQ(kv("step s1 epoch=2 step=3 start=5 tokens=1"), "accepted") << "the number was not used up";
}

TEST(KvContractTest, K18AnotherIncarnationIsACacheMiss) {
  Kv kv;
  EXPECT_EQ(kv("step s1 epoch=1 step=1 start=0 tokens=1 incarnation=other"), "refused cache-miss incarnation");
  kv("open s1 epoch=1 reserve=8");
  EXPECT_EQ(kv("step s1 epoch=1 step=1 start=0 tokens=1 incarnation=other"), "refused cache-miss incarnation past=0 next_step=1");
}

TEST(KvContractTest, K19FieldsAreCheckedAndValuesLast) {
  Kv kv("config chunk=8 pending=8");
  kv("open s1 epoch=1 reserve=32");
  const std::string step = "step s1 epoch=1 step=1 start=0 ";
  EXPECT_EQ(kv(step + "tokens=0"), "refused bad-request limit past=0 next_step=1");
  EXPECT_EQ(kv(step + "tokens=9"), "refused bad-request limit past=0 next_step=1");
  EXPECT_EQ(kv(step + "tokens=2 kind=decode"), "refused bad-request shape past=0 next_step=1");
  EXPECT_EQ(kv(step + "tokens=1 ack=1"), "refused bad-request limit past=0 next_step=1");
  EXPECT_EQ(kv(step + "tokens=1 token=1000"), "refused bad-request token past=0 next_step=1");
  EXPECT_EQ(kv(step + "tokens=1 token=-1"), "refused bad-request token past=0 next_step=1");
  EXPECT_EQ(kv(step + "tokens=1 fields=shape token=-1"), "refused bad-request shape past=0 next_step=1");
  EXPECT_EQ(kv(step + "tokens=1 fields=non-finite token=-1"), "refused bad-request token past=0 next_step=1");
  EXPECT_EQ(kv(step + "tokens=1 fields=non-finite"), "refused bad-request non-finite past=0 next_step=1");
  EXPECT_EQ(kv(step + "tokens=1 token=999"), "accepted");
}

TEST(KvContractTest, K20ADecodeStepStartsAtThePastLength) {
  Kv kv;
  kv("open s1 epoch=1 reserve=32");
  kv.Run("s1", "epoch=1 step=1 start=0 tokens=5");
  EXPECT_EQ(kv("step s1 epoch=1 step=2 start=4 tokens=1 kind=decode"), "refused cache-miss past-mismatch past=5 next_step=2");
  EXPECT_EQ(kv("step s1 epoch=1 step=2 start=6 tokens=1 kind=decode"), "refused cache-miss past-mismatch past=5 next_step=2");
  EXPECT_EQ(kv("step s1 epoch=1 step=2 start=6 tokens=1"), "refused cache-miss past-mismatch past=5 next_step=2");
  EXPECT_EQ(kv("step s1 epoch=1 step=2 start=5 tokens=1 kind=decode"), "accepted");
}

TEST(KvContractTest, K21AnEqualLengthIsNotAnEqualPrefix) {
  Kv kv("config context=600 budget=1200 chunk=300 pending=600");
  kv("open s1 epoch=1 reserve=600 salt=a");
  kv("open s2 epoch=1 reserve=600 salt=a");
  kv.Run("s1", "epoch=1 step=1 start=0 tokens=300");
  for (int i = 0; i < 3; ++i) {
    kv.Run("s2", "epoch=1 step=" + std::to_string(i + 1) + " start=" + std::to_string(i * 100) + " tokens=100 ack=" + std::to_string(i));
  }
  const std::string state = kv.State();
  const size_t first = state.find("digest="), second = state.find("digest=", state.find("session 02"));
  EXPECT_EQ(state.substr(first, 39), state.substr(second, 39)) << "chunks do not matter";
  EXPECT_EQ(kv("step s1 epoch=1 step=2 start=300 tokens=1 digest=wrong"), "refused cache-miss digest-mismatch past=300 next_step=2");
  EXPECT_EQ(kv("step s1 epoch=1 step=2 start=150 tokens=1 digest=wrong"), "refused cache-miss digest-mismatch past=300 next_step=2");
  EXPECT_EQ(kv("step s1 epoch=1 step=2 start=0 tokens=1 digest=wrong"), "refused cache-miss digest-mismatch past=300 next_step=2");
  EXPECT_EQ(kv.Run("s1", "epoch=1 step=2 start=257 tokens=1 content=1"), "past=258");
}

TEST(KvContractTest, K22ReprefillCutsOnlyItsOwnSession) {
  Kv kv;
  kv("open s1 epoch=1 reserve=32");
  kv("open s2 epoch=1 reserve=32");
  kv.Run("s1", "epoch=1 step=1 start=0 tokens=8");
  kv.Run("s2", "epoch=1 step=1 start=0 tokens=8");
  EXPECT_EQ(kv("step s1 epoch=1 step=2 start=3 tokens=2 content=1"), "accepted");
  EXPECT_EQ(kv("step s1 epoch=1 step=3 start=2 tokens=1"), "refused cache-miss past-mismatch past=8 next_step=3") << "the queue is not empty";
  EXPECT_EQ(kv("step s1 epoch=1 step=3 start=5 tokens=1 content=1"), "accepted") << "and positions count from the queued cut";
  EXPECT_EQ(kv("start s1 step=2"), "executing seq=0 start=3 truncate");
  EXPECT_EQ(kv("settle s1 ok step=2"), "past=5");
  EXPECT_EQ(kv("settle s1 ok step=3"), "past=6");
  EXPECT_EQ(kv.Run("s2", "epoch=1 step=2 start=8 tokens=1"), "past=9");
  EXPECT_EQ(kv.Run("s1", "epoch=1 step=4 start=0 tokens=1 content=2 ack=3"), "past=1");
}

TEST(KvContractTest, K23ClassFullGoesBackAnywhere) {
  Kv kv("config class=full");
  kv("open s1 epoch=1 reserve=32");
  kv.Run("s1", "epoch=1 step=1 start=0 tokens=20");
  EXPECT_EQ(kv.Run("s1", "epoch=1 step=2 start=1 tokens=1 ack=1"), "past=2");
}

TEST(KvContractTest, K24ClassWindowGoesBackWhileTheWindowIsIntact) {
  // Window 4, cells of 4 + 3 positions: after 20 tokens, cells begin at 13.
  Kv kv("config class=window sliding=4 slack=3");
  kv("open s1 epoch=1 reserve=32");
  kv.Run("s1", "epoch=1 step=1 start=0 tokens=7");
  EXPECT_EQ(kv.Run("s1", "epoch=1 step=2 start=1 tokens=19 ack=1"), "past=20") << "nothing was recycled yet";
  EXPECT_EQ(kv("step s1 epoch=1 step=3 start=16 tokens=1 ack=2"), "refused truncate-unsupported nearest=0 past=20 next_step=3");
  EXPECT_EQ(kv.Run("s1", "epoch=1 step=3 start=17 tokens=1 ack=2"), "past=18");
  EXPECT_EQ(kv.Run("s1", "epoch=1 step=4 start=18 tokens=1 ack=3"), "past=19");
  EXPECT_EQ(kv.Run("s1", "epoch=1 step=5 start=0 tokens=3 ack=4"), "past=3");
}

TEST(KvContractTest, K25ClassWholeGoesBackToNothingOnly) {
  Kv kv("config class=whole");
  kv("open s1 epoch=1 reserve=32");
  kv.Run("s1", "epoch=1 step=1 start=0 tokens=5");
  EXPECT_EQ(kv("step s1 epoch=1 step=2 start=4 tokens=1"), "refused truncate-unsupported nearest=0 past=5 next_step=2");
  EXPECT_EQ(kv.Run("s1", "epoch=1 step=2 start=5 tokens=1"), "past=6");
  EXPECT_EQ(kv.Run("s1", "epoch=1 step=3 start=0 tokens=2"), "past=2");
}

TEST(KvContractTest, K26TheReservationIsTheLimit) {
  Kv kv;
  kv("open s1 epoch=1 reserve=10");
  kv.Run("s1", "epoch=1 step=1 start=0 tokens=8");
  EXPECT_EQ(kv("step s1 epoch=1 step=2 start=8 tokens=3"), "refused context-exceeded past=8 next_step=2");
  EXPECT_EQ(kv("step s1 epoch=1 step=2 start=8 tokens=2"), "accepted");
  EXPECT_EQ(kv("step s1 epoch=1 step=3 start=10 tokens=1"), "refused context-exceeded past=8 next_step=3");
  Step step;
  step.key.session.bytes.fill(1);
  step.key.epoch = Epoch(1);
  step.incarnation = kv.config().incarnation;
  step.seq = StepSeq(3);
  step.start = PastLen(std::numeric_limits<uint32_t>::max());
  step.tokens = {1};
  const StepDecision decision = kv.kv().Admit(step, nullptr, Time(std::chrono::hours(1)));
  ASSERT_TRUE(std::holds_alternative<Refusal>(decision)) << "positions do not wrap";
  EXPECT_EQ(std::get<Refusal>(decision).detail, Detail::kPastMismatch);
}

TEST(KvContractTest, K27NumbersHaveNoGaps) {
  Kv kv;
  kv("open s1 epoch=1 reserve=32");
  EXPECT_EQ(kv("step s1 epoch=1 step=2 start=0 tokens=1"), "refused step-gap past=0 next_step=1");
  EXPECT_EQ(kv("step s1 epoch=1 step=0 start=0 tokens=1"), "refused bad-request limit past=0 next_step=1");
  kv("step s1 epoch=1 step=1 start=0 tokens=1");
  EXPECT_EQ(kv("step s1 epoch=1 step=3 start=1 tokens=1"), "refused step-gap past=0 next_step=2");
  EXPECT_EQ(kv("settle s1 rolled-back step=1"), "refused exec-failed past=0 next_step=1");
  EXPECT_EQ(kv.Run("s1", "epoch=1 step=1 start=0 tokens=2 content=1"), "past=2") << "the number carries another content now";
}

TEST(KvContractTest, K28QueuedStepsAreCheckedAgainstWhatWillBe) {
  Kv kv;
  kv("open s1 epoch=1 reserve=8");
  EXPECT_EQ(kv("step s1 epoch=1 step=1 start=0 tokens=3"), "accepted");
  EXPECT_EQ(kv("step s1 epoch=1 step=2 start=0 tokens=1"), "refused cache-miss past-mismatch past=0 next_step=2");
  EXPECT_EQ(kv("step s1 epoch=1 step=2 start=3 tokens=3 digest=wrong"), "refused cache-miss digest-mismatch past=0 next_step=2");
  EXPECT_EQ(kv("step s1 epoch=1 step=2 start=3 tokens=3"), "accepted");
  EXPECT_EQ(kv("step s1 epoch=1 step=3 start=6 tokens=3"), "refused context-exceeded past=0 next_step=3");
  EXPECT_EQ(kv("step s1 epoch=1 step=3 start=6 tokens=1 kind=decode"), "accepted");
  EXPECT_EQ(kv("settle s1 ok step=1"), "past=3");
  EXPECT_EQ(kv("settle s1 ok step=2"), "past=6");
  EXPECT_EQ(kv("settle s1 ok step=3"), "past=7");
}

TEST(KvContractTest, K29WhatStandsBehindAFailedStepGoesWithIt) {
  Kv kv;
  kv("open s1 epoch=1 reserve=32");
  for (int i = 1; i <= 4; ++i) kv("step s1 epoch=1 step=" + std::to_string(i) + " start=" + std::to_string(2 * i - 2) + " tokens=2");
  EXPECT_EQ(kv("start s1 step=2"), "not its turn");
  EXPECT_EQ(kv("settle s1 ok step=1"), "past=2");
  EXPECT_EQ(kv("start s1 step=2"), "executing seq=0 start=2");
  EXPECT_EQ(kv("start s1 step=3"), "not its turn");
  EXPECT_EQ(kv("settle s1 rolled-back step=2"), "refused exec-failed past=2 next_step=2 dropped=4:step-gap,3:step-gap");
  EXPECT_EQ(kv.Run("s1", "epoch=1 step=2 start=2 tokens=2 content=1"), "past=4");
}

TEST(KvContractDeathTest, OutOfTurnIsAMistakeOfTheCaller) {
  Kv kv;
  kv("open s1 epoch=1 reserve=32");
  kv("step s1 epoch=1 step=1 start=0 tokens=2");
  kv("step s1 epoch=1 step=2 start=2 tokens=2");
  Ticket second;
  second.key.session.bytes.fill(1);
  second.key.epoch = Epoch(1);
  second.seq = StepSeq(2);
  second.serial = 2;
  EXPECT_DEATH(kv.kv().Start(second, Time(std::chrono::hours(1))), "queue.front");
  EXPECT_DEATH(kv.kv().Settle(second, StepFate::kDone, {}, "", Time(std::chrono::hours(1))), "closing.end");
}

TEST(KvContractTest, K30TheSameStepIsAnsweredFromTheRecord) {
  Kv kv;
  kv("open s1 epoch=1 reserve=32");
  EXPECT_EQ(kv("step s1 epoch=1 step=1 start=0 tokens=2 frame=5"), "accepted");
  EXPECT_EQ(kv("step s1 epoch=1 step=1 start=0 tokens=2 frame=5"), "joined");
  kv("start s1 step=1");
  EXPECT_EQ(kv("step s1 epoch=1 step=1 start=0 tokens=2 frame=5"), "joined");
  kv("settle s1 ok step=1");
  kv.Run("s1", "epoch=1 step=2 start=2 tokens=1");
  const uint64_t runs = kv.engine().counts().runs;
  EXPECT_EQ(kv("step s1 epoch=1 step=1 start=0 tokens=2 frame=5"), "replayed past=2");
  // A repeated step may carry a newer acknowledgement and deadline.
  EXPECT_EQ(kv("step s1 epoch=1 step=2 start=2 tokens=1 ack=1 deadline_ms=0"), "replayed past=3");
  EXPECT_EQ(kv.engine().counts().runs, runs);
  EXPECT_NE(kv("stats").find("replays=2 committed=2"), std::string::npos);
}

TEST(KvContractTest, K31OtherContentUnderTheSameNumberIsAConflict) {
  Kv kv;
  kv("open s1 epoch=1 reserve=32");
  kv.Run("s1", "epoch=1 step=1 start=0 tokens=2 frame=5");
  kv("step s1 epoch=1 step=2 start=2 tokens=1 frame=5");
  for (const char* rest : {"step=1 start=0 tokens=2 frame=6", "step=1 start=0 tokens=2", "step=1 start=0 tokens=3 frame=5",
                           "step=1 start=0 tokens=2 frame=5 content=1", "step=1 start=0 tokens=2 frame=5 digest=wrong",
                           "step=2 start=2 tokens=1 frame=5 kind=decode", "step=2 start=2 tokens=1 frame=6", "step=2 start=1 tokens=1 frame=5"}) {
    EXPECT_EQ(kv(std::string("step s1 epoch=1 ") + rest).rfind("refused step-conflict", 0), 0u) << rest;
  }
}

TEST(KvContractTest, K32AnAcknowledgedReplyIsGone) {
  Kv kv;
  kv("open s1 epoch=1 reserve=32");
  kv.Run("s1", "epoch=1 step=1 start=0 tokens=2");
  EXPECT_EQ(kv("step s1 epoch=1 step=2 start=9 tokens=1 ack=1"), "refused cache-miss past-mismatch past=2 next_step=2");
  EXPECT_EQ(kv("step s1 epoch=1 step=1 start=0 tokens=2"), "replayed past=2") << "a refused step acknowledges nothing";
  kv("step s1 epoch=1 step=2 start=2 tokens=1 ack=1");
  EXPECT_EQ(kv("step s1 epoch=1 step=1 start=0 tokens=2"), "refused step-reply-gone past=2 next_step=3");
  EXPECT_EQ(kv("step s1 epoch=1 step=3 start=3 tokens=1 ack=0"), "accepted") << "an older acknowledgement is no harm";
}

TEST(KvContractTest, K33CreditIsAbsolute) {
  Kv kv("config window=2 chunk=8 pending=10");
  kv("open s1 epoch=1 reserve=64");
  kv("step s1 epoch=1 step=1 start=0 tokens=1");
  kv("step s1 epoch=1 step=2 start=1 tokens=1");
  EXPECT_EQ(kv("step s1 epoch=1 step=3 start=2 tokens=1"), "refused credit-exceeded past=0 next_step=3");
  kv("settle s1 ok step=1");
  EXPECT_EQ(kv("step s1 epoch=1 step=3 start=2 tokens=1"), "refused credit-exceeded past=1 next_step=3") << "committed, but not acknowledged";
  EXPECT_EQ(kv("step s1 epoch=1 step=3 start=2 tokens=1 ack=1"), "accepted");
  kv("cancel s1 epoch=1");
  EXPECT_EQ(kv("open s1 epoch=1 reserve=64"), "accepted seq=0 past=1 next_step=2 credit=3") << "nothing leaked, and it does not fall";
  EXPECT_EQ(kv("step s1 epoch=1 step=2 start=1 tokens=8 ack=1"), "accepted");
  EXPECT_EQ(kv("step s1 epoch=1 step=3 start=9 tokens=3 ack=1"), "refused credit-exceeded past=1 next_step=3");
  EXPECT_EQ(kv("step s1 epoch=1 step=3 start=9 tokens=2 ack=1"), "accepted");
}

TEST(KvContractTest, K34CancelLeavesNoEffect) {
  Kv kv;
  kv("open s1 epoch=1 reserve=32");
  kv.Run("s1", "epoch=1 step=1 start=0 tokens=6");
  kv("step s1 epoch=1 step=2 start=2 tokens=1 content=1");
  EXPECT_EQ(kv("cancel s1 epoch=1"), "cancelled dropped=2:cancelled");
  EXPECT_EQ(kv("step s1 epoch=1 step=2 start=6 tokens=1"), "accepted") << "the cut of a cancelled step never happened";
  kv("step s1 epoch=1 step=3 start=7 tokens=1");
  kv("step s1 epoch=1 step=4 start=8 tokens=1");
  kv("start s1 step=2");
  EXPECT_EQ(kv("cancel s1 epoch=1"), "cancelled dropped=4:cancelled,3:cancelled");
  EXPECT_EQ(kv("settle s1 ok step=2"), "past=7") << "what executes goes on";
  EXPECT_EQ(kv("cancel s1 epoch=1"), "nothing queued");
  EXPECT_EQ(kv.Run("s1", "epoch=1 step=3 start=7 tokens=2 ack=2"), "past=9");
}

TEST(KvContractTest, K35ALateStepEndsWithoutEffect) {
  Kv kv;
  kv("open s1 epoch=1 reserve=32");
  EXPECT_EQ(kv("step s1 epoch=1 step=1 start=0 tokens=1 deadline_ms=0"), "refused deadline-exceeded past=0 next_step=1");
  EXPECT_EQ(kv("step s1 epoch=1 step=1 start=0 tokens=1 deadline_ms=10"), "accepted");
  kv("step s1 epoch=1 step=2 start=1 tokens=1");
  kv("advance 10");
  EXPECT_EQ(kv("start s1 step=1"), "nothing dropped=2:step-gap,1:deadline-exceeded");
  EXPECT_EQ(kv("step s1 epoch=1 step=1 start=0 tokens=1 deadline_ms=10"), "accepted");
  kv("start s1 step=1");
  kv("advance 10");
  EXPECT_EQ(kv("settle s1 ok step=1"), "past=1") << "once it executes it counts";
}

TEST(KvContractTest, K36ACommitIsIndivisible) {
  Kv kv("config sessions=1 context=32 budget=32");
  kv("open s1 epoch=1 reserve=32");
  kv.Run("s1", "epoch=1 step=1 start=0 tokens=6");
  kv("advance 5");
  kv("step s1 epoch=1 step=2 start=2 tokens=3 content=1");
  kv("start s1 step=2");
  EXPECT_EQ(kv("open s1 epoch=1 reserve=32"), "accepted seq=0 past=6 next_step=3 credit=4");
  EXPECT_NE(kv("stats").find("used=6"), std::string::npos);
  EXPECT_EQ(kv("settle s1 ok step=2"), "past=5");
  EXPECT_EQ(kv("open s1 epoch=1 reserve=32"), "accepted seq=0 past=5 next_step=3 credit=4");
  EXPECT_NE(kv("stats").find("used=5"), std::string::npos);
  EXPECT_EQ(kv("step s1 epoch=1 step=2 start=2 tokens=3 content=1"), "replayed past=5");
}

TEST(KvContractTest, K37ARolledBackStepLeavesItsStart) {
  Kv kv;
  kv("open s1 epoch=1 reserve=32");
  kv.Run("s1", "epoch=1 step=1 start=0 tokens=6");
  kv("step s1 epoch=1 step=2 start=6 tokens=3");
  EXPECT_EQ(kv("settle s1 rolled-back step=2"), "refused exec-failed past=6 next_step=2");
  kv("step s1 epoch=1 step=2 start=4 tokens=3 content=1");
  EXPECT_EQ(kv("settle s1 rolled-back step=2"), "refused exec-failed past=4 next_step=2") << "the cut was done before the failure";
  EXPECT_EQ(kv.Run("s1", "epoch=1 step=2 start=4 tokens=1 content=1"), "past=5");
  EXPECT_EQ(kv("step s1 epoch=1 step=1 start=0 tokens=6"), "replayed past=6") << "what was committed stays answered";
}

TEST(KvContractTest, K38AnUnprovenFailureLosesTheSession) {
  for (const char* fate : {"lost", "truncate-fails"}) {
    Kv kv;
    kv("open s1 epoch=1 reserve=32");
    kv.Run("s1", "epoch=1 step=1 start=0 tokens=6");
    kv("step s1 epoch=1 step=2 start=2 tokens=1 content=1");
    kv("step s1 epoch=1 step=3 start=3 tokens=1 content=1");
    EXPECT_EQ(kv(std::string("settle s1 ") + fate + " step=2"), "refused cache-miss lost dropped=3:cache-miss removes=0");
    EXPECT_EQ(kv("step s1 epoch=1 step=2 start=6 tokens=1"), "refused cache-miss lost");
    EXPECT_NE(kv("stats").find("live=0 busy=0 reserved=0 used=0 free=2"), std::string::npos);
    EXPECT_EQ(kv("open s1 epoch=2 reserve=32"), "accepted seq=0 past=0 next_step=1 credit=4");
  }
}

TEST(KvContractTest, K39SessionsDoNotMeet) {
  // Four sessions, taken in turns, one of them failing, going back, being cancelled: each token is that of a session alone, which the
  // transcript checks at every commit.
  Kv kv("config sessions=4 context=64 budget=256");
  for (int s = 1; s <= 4; ++s) kv("open s" + std::to_string(s) + " epoch=1 reserve=64");
  for (int round = 0; round < 8; ++round) {
    for (int s = 1; s <= 4; ++s) {
      const std::string name = "s" + std::to_string(s), content = " content=" + std::to_string(s);
      const std::string step = " epoch=1 step=" + std::to_string(round + 1) + " start=" + std::to_string(3 * round) + " tokens=3" + content +
                               " ack=" + std::to_string(round);
      if (s == 1 && round % 2 == 1) {
        kv("step s1" + step);
        kv("settle s1 rolled-back step=" + std::to_string(round + 1));
      }
      if (s == 2 && round == 4) {
        kv("step s2" + step);
        kv("cancel s2 epoch=1");
      }
      EXPECT_EQ(kv.Run(name, step.substr(1)), "past=" + std::to_string(3 * round + 3));
    }
  }
  kv("step s3 epoch=1 step=9 start=24 tokens=1");
  kv("settle s3 lost step=9");
  EXPECT_EQ(kv.Run("s4", "epoch=1 step=9 start=24 tokens=1 content=4"), "past=25");
}

TEST(KvContractTest, K40TtlIsDueExactlyAfterTheLastCommit) {
  Kv kv("config ttl_ms=1000");
  kv("open s1 epoch=1 reserve=32");
  kv("open s2 epoch=1 reserve=32");
  kv("advance 500");
  kv.Run("s1", "epoch=1 step=1 start=0 tokens=1");
  kv("step s2 epoch=1 step=1 start=0 tokens=1");
  kv("advance 500");
  EXPECT_EQ(kv.kv().next_expiry(), Time(std::chrono::hours(1)) + std::chrono::milliseconds(1500));
  EXPECT_EQ(kv("expire"), "expired") << "s2 is due, but busy";
  kv("advance 499");
  EXPECT_EQ(kv("expire"), "expired");
  kv("advance 1");
  EXPECT_EQ(kv("expire"), "expired removes=0");
  kv("cancel s2 epoch=1");
  EXPECT_EQ(kv("expire"), "expired removes=1") << "a cancelled step was no use of it";
}

TEST(KvContractTest, K41ADrainLetsLiveSessionsGoOnAndThenEndsThem) {
  Kv kv;
  kv("open s1 epoch=1 reserve=32");
  kv("open s2 epoch=1 reserve=32");
  kv.Run("s1", "epoch=1 step=1 start=0 tokens=2");
  EXPECT_EQ(kv("drain"), "draining");
  EXPECT_EQ(kv("open s3 epoch=1 reserve=32"), "refused draining");
  EXPECT_EQ(kv.Run("s1", "epoch=1 step=2 start=2 tokens=1"), "past=3");
  kv("step s1 epoch=1 step=3 start=3 tokens=1");
  kv("step s1 epoch=1 step=4 start=4 tokens=1");
  kv("start s1 step=3");
  EXPECT_EQ(kv("finish-drain"), "drained removes=1");
  EXPECT_EQ(kv("dropped"), "dropped=4:cache-miss");
  EXPECT_EQ(kv("settle s1 ok step=3"), "refused cache-miss drained removes=0");
  EXPECT_EQ(kv("step s1 epoch=1 step=3 start=3 tokens=1"), "refused cache-miss drained");
  EXPECT_EQ(kv("step s2 epoch=1 step=1 start=0 tokens=1"), "refused cache-miss drained");
}

TEST(KvContractTest, K42APoisonedWorkerServesNoMore) {
  Kv kv;
  kv("open s1 epoch=1 reserve=32");
  kv.Run("s1", "epoch=1 step=1 start=0 tokens=2");
  kv("step s1 epoch=1 step=2 start=2 tokens=1");
  kv("step s1 epoch=1 step=3 start=3 tokens=1");
  kv("start s1 step=2");
  kv("poison");
  EXPECT_EQ(kv("dropped"), "dropped=3:poisoned");
  EXPECT_EQ(kv("settle s1 ok step=2"), "refused poisoned removes=0");
  EXPECT_EQ(kv("open s2 epoch=1 reserve=32"), "refused poisoned");
  EXPECT_EQ(kv("step s1 epoch=1 step=1 start=0 tokens=2"), "refused poisoned");
  EXPECT_EQ(kv("drain"), "draining");
  EXPECT_EQ(kv("open s2 epoch=1 reserve=32"), "refused poisoned") << "poisoned it stays";
}

TEST(KvContractTest, K43EverythingComesBack) {
  Kv kv("config sessions=3 context=16 budget=48 ttl_ms=1000");
  const std::string empty = "serving live=0 busy=0 reserved=0 used=0 free=3 queued=0";
  for (int round = 0; round < 300; ++round) {
    const std::string epoch = " epoch=" + std::to_string(2 * round + 1);
    for (const char* name : {"s1", "s2", "s3"}) kv(std::string("open ") + name + epoch + " reserve=16");
    for (const char* name : {"s1", "s2", "s3"}) kv.Run(name, epoch.substr(1) + " step=1 start=0 tokens=4");
    kv("step s1" + epoch + " step=2 start=4 tokens=1");
    kv("settle s1 lost step=2");
    kv("step s2" + epoch + " step=2 start=4 tokens=1");
    kv("start s2 step=2");
    EXPECT_EQ(kv("release s2" + epoch), "deferred");
    kv("settle s2 ok step=2");
    kv("open s3 epoch=" + std::to_string(2 * round + 2) + " reserve=8");
    kv("advance 1000");
    kv("expire");
    EXPECT_EQ(kv("stats").substr(0, empty.size()), empty);
  }
}

TEST(KvContractTest, K44TenThousandOpensLeaveNoMoreThanTheBounds) {
  Kv kv("config sessions=2 context=16 budget=32 tombstones=8");
  SessionKey key;
  key.epoch = Epoch(1);
  Time now(std::chrono::hours(1));
  for (uint32_t i = 0; i < 10000; ++i) {
    key.session.bytes[0] = static_cast<uint8_t>(i);
    key.session.bytes[1] = static_cast<uint8_t>(i >> 8);
    OpenRequest request;
    request.key = key;
    request.reserve_tokens = 16;
    now += std::chrono::milliseconds(1);
    OpenDecision decision = kv.kv().Open(request, now);
    for (SequenceId sequence : std::get<OpenAccepted>(decision).effects.removals) kv.kv().ConfirmRemoved(sequence);
  }
  kv.kv().CheckInvariants();
  const std::string state = kv.State();
  EXPECT_EQ(std::ranges::count(state, '\n'), 1 + 2 + 8) << state;
}

}  // namespace
}  // namespace meshnet::kv
