#include "worker/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace meshnet {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr Time kStart{std::chrono::hours(1)};

kv::Ticket TicketOf(uint8_t session, uint64_t seq) {
  kv::Ticket ticket;
  ticket.key.session.bytes[0] = session;
  ticket.key.epoch = Epoch(1);
  ticket.seq = StepSeq(seq);
  ticket.serial = session * 1000u + seq;
  return ticket;
}

// "d:1.1,2.1" or "c:3.1", "wait", "idle".
std::string Text(const Scheduler::Plan& plan) {
  if (plan.verdict == Scheduler::Plan::Verdict::kIdle) return "idle";
  if (plan.verdict == Scheduler::Plan::Verdict::kWait) return "wait";
  std::string text = plan.shape == StepShape::kDecode ? "d:" : "c:";
  for (const kv::Ticket& ticket : plan.tickets) {
    if (text.size() > 2) text += ",";
    text += std::to_string(ticket.key.session.bytes[0]) + "." + std::to_string(ticket.seq.value);
  }
  return text;
}

class SchedulerTest : public ::testing::Test {
 protected:
  // Runs what comes next and says what it was.
  std::string Step(Duration took = milliseconds(100)) {
    Scheduler::Plan plan = scheduler_.Next(now_);
    if (plan.verdict == Scheduler::Plan::Verdict::kRun) {
      scheduler_.Started(plan);
      scheduler_.Finished(plan, took);
    }
    return Text(plan);
  }
  void Decode(uint8_t session, uint64_t seq) { scheduler_.Queue(TicketOf(session, seq), StepShape::kDecode, 1); }
  void Chunk(uint8_t session, uint64_t seq, uint32_t rows = 128) { scheduler_.Queue(TicketOf(session, seq), StepShape::kChunk, rows); }

  Scheduler scheduler_{SchedulerConfig{.decode_rows_max = 4}};
  Time now_ = kStart;
};

TEST_F(SchedulerTest, IsIdleWithoutSteps) {
  EXPECT_EQ(Step(), "idle");
  EXPECT_TRUE(scheduler_.empty());
}

TEST_F(SchedulerTest, MergesAllReadyDecodesAndRunsThemFirst) {
  Chunk(3, 1);
  Decode(1, 1);
  Decode(2, 1);
  EXPECT_EQ(Step(), "d:1.1,2.1");
  EXPECT_EQ(Step(), "c:3.1");
  EXPECT_EQ(Step(), "idle");
}

TEST_F(SchedulerTest, AlternatesOneDecodeBatchWithOneChunk) {
  for (uint64_t seq = 1; seq <= 3; ++seq) {
    Chunk(1, seq);
    Decode(2, seq);
  }
  EXPECT_EQ(Step(), "d:2.1");
  EXPECT_EQ(Step(), "c:1.1");
  EXPECT_EQ(Step(), "d:2.2");
  EXPECT_EQ(Step(), "c:1.2");
  EXPECT_EQ(Step(), "d:2.3");
  EXPECT_EQ(Step(), "c:1.3");
}

TEST_F(SchedulerTest, ShortChunksFollowEachOtherUpToTheRowsOfOneFullChunk) {
  for (uint64_t seq = 1; seq <= 3; ++seq) Decode(1, seq);
  Chunk(2, 1, 60);
  Chunk(3, 1, 60);
  Chunk(4, 1, 60);
  Chunk(5, 1, 100);
  Chunk(6, 1, 29);
  EXPECT_EQ(Step(), "d:1.1");
  EXPECT_EQ(Step(), "c:2.1");
  EXPECT_EQ(Step(), "c:3.1");
  EXPECT_EQ(Step(), "d:1.2");
  EXPECT_EQ(Step(), "c:4.1");
  EXPECT_EQ(Step(), "d:1.3");
  EXPECT_EQ(Step(), "c:5.1");  // nothing else is ready
  Decode(1, 4);
  EXPECT_EQ(Step(), "d:1.4");  // 28 rows would still fit
  EXPECT_EQ(Step(), "c:6.1");
}

TEST_F(SchedulerTest, ADecodeWaitsForFewChunksHoweverShort) {
  Decode(1, 1);
  Decode(1, 2);
  for (uint8_t session = 2; session < 40; ++session) Chunk(session, 1, 1);
  EXPECT_EQ(Step(), "d:1.1");
  for (int i = 0; i < 8; ++i) EXPECT_THAT(Step(), testing::StartsWith("c:")) << i;
  EXPECT_EQ(Step(), "d:1.2");
}

TEST_F(SchedulerTest, ServesSessionsInTurn) {
  for (uint64_t seq = 1; seq <= 3; ++seq) Chunk(1, seq);
  Chunk(2, 1);
  Chunk(3, 1);
  EXPECT_EQ(Step(), "c:1.1");
  EXPECT_EQ(Step(), "c:2.1");
  Chunk(4, 1);
  EXPECT_EQ(Step(), "c:3.1");
  EXPECT_EQ(Step(), "c:1.2");  // before a session that came later
  EXPECT_EQ(Step(), "c:4.1");
  EXPECT_EQ(Step(), "c:1.3");
}

TEST_F(SchedulerTest, KeepsTheOrderWithinASession) {
  Chunk(1, 1);
  Decode(1, 2);
  Decode(2, 1);
  EXPECT_EQ(Step(), "d:2.1");  // 1.2 waits behind 1.1
  EXPECT_EQ(Step(), "c:1.1");
  EXPECT_EQ(Step(), "d:1.2");
}

TEST_F(SchedulerTest, BoundsABatchAndServesTheRestNext) {
  for (uint8_t session = 1; session <= 6; ++session) Decode(session, 1);
  EXPECT_EQ(Step(), "d:1.1,2.1,3.1,4.1");
  for (uint8_t session = 1; session <= 4; ++session) Decode(session, 2);
  EXPECT_EQ(Step(), "d:5.1,6.1,1.2,2.2");
}

TEST_F(SchedulerTest, ForgetsWhatIsDropped) {
  Decode(1, 1);
  Decode(1, 2);
  scheduler_.Drop(TicketOf(1, 1));
  scheduler_.Drop(TicketOf(9, 9));
  EXPECT_EQ(Step(), "d:1.2");
  Decode(2, 1);
  scheduler_.Drop(TicketOf(2, 1));
  EXPECT_TRUE(scheduler_.empty());
  EXPECT_EQ(Step(), "idle");
}

TEST_F(SchedulerTest, DoesNotWaitForASingleSession) {
  for (uint64_t seq = 1; seq <= 5; ++seq) {
    Decode(1, seq);
    EXPECT_EQ(Step(), "d:1." + std::to_string(seq));
  }
}

TEST_F(SchedulerTest, WaitsBrieflyForTheRestOfTheLastBatch) {
  for (uint8_t session = 1; session <= 3; ++session) Decode(session, 1);
  EXPECT_EQ(Step(milliseconds(30)), "d:1.1,2.1,3.1");
  Decode(1, 2);
  Scheduler::Plan plan = scheduler_.Next(now_);
  EXPECT_EQ(Text(plan), "wait");
  EXPECT_EQ(plan.until, now_ + milliseconds(15));  // half of a pass
  now_ += milliseconds(2);
  Decode(2, 2);
  EXPECT_EQ(Step(), "wait");
  EXPECT_EQ(scheduler_.Next(now_).until, now_ + milliseconds(1));  // answers come one after the other: a pause is the end of them
  Decode(3, 2);
  EXPECT_EQ(Step(), "d:1.2,2.2,3.2");
}

TEST_F(SchedulerTest, ABurstIsFollowedButNotForEver) {
  for (uint8_t session = 1; session <= 4; ++session) Decode(session, 1);
  EXPECT_EQ(Step(milliseconds(1000)), "d:1.1,2.1,3.1,4.1");
  Decode(1, 2);
  EXPECT_EQ(Step(), "wait");
  now_ += milliseconds(19);
  Decode(2, 2);
  EXPECT_EQ(Step(), "wait");
  now_ += microseconds(900);
  Decode(3, 2);
  EXPECT_EQ(scheduler_.Next(now_).until, kStart + milliseconds(20));
  now_ = kStart + milliseconds(20);
  EXPECT_EQ(Step(), "d:1.2,2.2,3.2");
  // It brought some, so the next batch waits as well.
  Decode(1, 3);
  EXPECT_EQ(Step(), "wait");
}

TEST_F(SchedulerTest, AShortCallWaitsForALongOne) {
  // A cohort of one between the batches of three others: what it saves by joining them is a pass over the weights.
  for (uint8_t session = 1; session <= 3; ++session) Decode(session, 1);
  EXPECT_EQ(Step(milliseconds(40)), "d:1.1,2.1,3.1");
  Decode(4, 1);
  EXPECT_EQ(Step(milliseconds(6)), "wait");
  now_ += milliseconds(20);
  EXPECT_EQ(Step(milliseconds(6)), "d:4.1");
  for (uint8_t session = 1; session <= 3; ++session) Decode(session, 2);
  EXPECT_EQ(Step(milliseconds(40)), "d:1.2,2.2,3.2");  // no wait after one that brought nobody
  Decode(4, 2);
  Scheduler::Plan plan = scheduler_.Next(now_);
  EXPECT_EQ(Text(plan), "wait");
  EXPECT_EQ(plan.until, now_ + milliseconds(3));
}

TEST_F(SchedulerTest, GoesOnWithoutThoseWhoDoNotCome) {
  for (uint8_t session = 1; session <= 3; ++session) Decode(session, 1);
  EXPECT_EQ(Step(milliseconds(1000)), "d:1.1,2.1,3.1");
  Decode(1, 2);
  EXPECT_EQ(scheduler_.Next(now_).until, now_ + milliseconds(20));  // never longer
  now_ += milliseconds(20);
  EXPECT_EQ(Step(), "d:1.2");
  Decode(1, 3);
  EXPECT_EQ(Step(), "d:1.3");  // the wait brought nobody, so the next batch does not wait
  Decode(1, 4);
  EXPECT_EQ(Step(), "d:1.4");  // and the others are no longer expected
}

TEST_F(SchedulerTest, GivesUpOnCohortsThatNeverMeet) {
  // Two sessions that take turns, as over two hosts whose work overlaps: most batches must not wait.
  int waits = 0;
  for (uint64_t seq = 1; seq <= 200; ++seq) {
    uint8_t session = seq % 2 ? 1 : 2;
    Decode(session, seq);
    if (Step() == "wait") {
      ++waits;
      now_ += milliseconds(20);
      Step();
    }
  }
  EXPECT_GT(waits, 0);
  EXPECT_LT(waits, 14);
}

TEST_F(SchedulerTest, MergesCohortsThatDoMeet) {
  Decode(1, 1);
  EXPECT_EQ(Step(), "d:1.1");
  Decode(2, 1);
  EXPECT_EQ(Step(), "d:2.1");
  Decode(1, 2);
  EXPECT_EQ(Step(), "wait");
  now_ += milliseconds(1);
  Decode(2, 2);
  EXPECT_EQ(Step(), "d:1.2,2.2");
  Decode(2, 3);
  EXPECT_EQ(Step(), "wait");
  Decode(1, 3);
  EXPECT_EQ(Step(), "d:2.3,1.3");
}

TEST_F(SchedulerTest, DoesNotWaitWhenCallsAreTiny) {
  Decode(1, 1);
  Decode(2, 1);
  EXPECT_EQ(Step(microseconds(500)), "d:1.1,2.1");
  Decode(1, 2);
  EXPECT_EQ(Step(), "d:1.2");
}

TEST_F(SchedulerTest, AChunkWhoseTurnItIsDoesNotWait) {
  Decode(1, 1);
  Decode(2, 1);
  EXPECT_EQ(Step(), "d:1.1,2.1");
  Decode(1, 2);
  Chunk(3, 1);
  EXPECT_EQ(Step(), "c:3.1");
  EXPECT_EQ(Step(), "wait");
}

TEST_F(SchedulerTest, GathersOnceMoreAfterTheHostTurnWasWaitedFor) {
  Decode(1, 1);
  Decode(2, 1);
  EXPECT_EQ(Step(), "d:1.1,2.1");
  Decode(1, 2);
  EXPECT_EQ(Step(), "wait");
  now_ += milliseconds(50);  // the other worker ran meanwhile
  EXPECT_EQ(Text(scheduler_.Next(now_)), "d:1.2");
  EXPECT_TRUE(scheduler_.RegatherAfterTurn(now_));
  EXPECT_EQ(Step(), "wait");
  Decode(2, 2);
  EXPECT_FALSE(scheduler_.RegatherAfterTurn(now_));
  EXPECT_EQ(Step(), "d:1.2,2.2");

  Decode(1, 3);
  now_ += milliseconds(50);
  EXPECT_TRUE(scheduler_.RegatherAfterTurn(now_));
  now_ += milliseconds(20);
  EXPECT_FALSE(scheduler_.RegatherAfterTurn(now_));  // at most once
  EXPECT_EQ(Step(), "d:1.3");
  Decode(1, 4);
  EXPECT_FALSE(scheduler_.RegatherAfterTurn(now_));  // it brought nobody
}

TEST_F(SchedulerTest, WhatCameWhileAnotherComputedSaysNothingForWaiting) {
  for (uint8_t session = 1; session <= 3; ++session) Decode(session, 1);
  EXPECT_EQ(Step(), "d:1.1,2.1,3.1");
  Decode(1, 2);
  EXPECT_EQ(Step(), "wait");
  now_ += milliseconds(2);
  Decode(2, 2);  // the other worker has the turn, so this is no merit of the wait
  EXPECT_EQ(Step(), "wait");
  now_ += milliseconds(50);
  EXPECT_TRUE(scheduler_.RegatherAfterTurn(now_));
  now_ += milliseconds(20);
  EXPECT_EQ(Step(), "d:1.2,2.2");
  Decode(1, 3);
  EXPECT_EQ(Step(), "d:1.3");  // session 3 did not come: no wait now, and none for it later
  Decode(1, 4);
  Decode(2, 3);
  EXPECT_EQ(Step(), "d:1.4,2.3");
}

TEST_F(SchedulerTest, AWaitCostsNoMoreThanAPassWouldWhenABatchIsLarge) {
  Decode(1, 1);
  EXPECT_EQ(Step(milliseconds(5)), "d:1.1");
  for (uint8_t session = 1; session <= 4; ++session) Decode(session, 2);
  EXPECT_EQ(Step(milliseconds(40)), "d:1.2,2.2,3.2,4.2");
  for (uint8_t session = 1; session <= 3; ++session) Decode(session, 3);
  EXPECT_EQ(scheduler_.Next(now_).until, now_ + microseconds(2500));
}

}  // namespace
}  // namespace meshnet
