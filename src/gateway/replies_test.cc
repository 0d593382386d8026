#include "gateway/replies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace meshnet::gateway {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(RepliesTest, ARefusalForLackOfRoomSaysWhichRoom) {
  SessionPool::Counts counts;
  counts.answering = 3;
  counts.answers_max = 8;
  counts.waiting = 60;
  counts.waiting_max = 64;
  const AnswerError some = LineFull(20, counts);
  EXPECT_EQ(some.error.status, 429);
  EXPECT_THAT(some.error.message, HasSubstr("3 of 8 sessions are taken and 60 answers wait for one, so there is room for 9 more. This request needs 20"));
  EXPECT_TRUE(some.retry_after.has_value());
  counts.answering = 8;
  counts.waiting = 64;
  EXPECT_THAT(LineFull(1, counts).error.message, HasSubstr("8 of 8 sessions are taken and 64 answers wait for one: the queue is full."));

  // The gateway's sessions may be free then.
  const AnswerError workers = FromFailure({AnswerFailure::Kind::kCapacity, "stage 1 has no token left", std::chrono::seconds(7)});
  EXPECT_EQ(workers.error.status, 429);
  EXPECT_EQ(workers.retry_after, std::chrono::seconds(7));
  EXPECT_THAT(workers.error.message, HasSubstr("workers had no room for this answer's session: stage 1 has no token left"));
  EXPECT_THAT(workers.error.message, Not(HasSubstr("sessions are taken")));
}

TEST(RepliesTest, WhatNeverFitsIsNotSentBackLater) {
  SessionPool::Counts counts;
  counts.answers_max = 8;
  counts.waiting_max = 64;
  const ApiError error = TooManyChoices(64, 512, counts);
  EXPECT_EQ(error.status, 400);
  EXPECT_EQ(error.param, "prompt");
  for (const char* part : {"512 answers", "at most 72", "8 at once and 64 in the queue", "fewer prompts or a smaller n"}) {
    EXPECT_THAT(error.message, HasSubstr(part));
  }
  EXPECT_EQ(TooManyChoices(1, 8, {}).param, "n");
}

}  // namespace
}  // namespace meshnet::gateway
