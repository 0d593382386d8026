#include "session/pool_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace meshnet {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(TurnLineTest, FirstComeFirstServed) {
  TurnLine line;
  const TurnLine::Ticket first = line.Join(), second = line.Join();
  EXPECT_EQ(line.waiting(), 2u);
  EXPECT_FALSE(line.MayGo(first, 0));
  EXPECT_TRUE(line.MayGo(first, 1));
  EXPECT_FALSE(line.MayGo(second, 5)) << "nobody overtakes";
  line.Leave(first);
  EXPECT_TRUE(line.MayGo(second, 1));
  line.Leave(second);
  EXPECT_EQ(line.waiting(), 0u);
}

TEST(TurnLineTest, OneMayGoBeforeEverybody) {
  TurnLine line;
  const TurnLine::Ticket waiting = line.Join();
  const TurnLine::Ticket first = line.JoinFirst();
  EXPECT_TRUE(line.MayGo(first, 1));
  EXPECT_FALSE(line.MayGo(waiting, 1));
  line.Leave(first);
  EXPECT_TRUE(line.MayGo(waiting, 1));
}

TEST(TurnLineTest, WhoGivesUpInTheMiddleHoldsNobodyUp) {
  TurnLine line;
  const TurnLine::Ticket first = line.Join(), second = line.Join(), third = line.Join();
  line.Leave(second);
  line.Leave(first);
  EXPECT_TRUE(line.MayGo(third, 1));
}

TEST(PoolPolicyTest, SessionsThatFitAtFullContext) {
  EXPECT_EQ(SessionsThatFit({.context_tokens = 256, .sessions_max = 8, .budget_tokens = 1024}), 4u);
  EXPECT_EQ(SessionsThatFit({.context_tokens = 256, .sessions_max = 2, .budget_tokens = 1024}), 2u);
  EXPECT_EQ(SessionsThatFit({.context_tokens = 256, .sessions_max = 8, .budget_tokens = 300}), 1u);
}

struct Idle {
  uint64_t handle;
  const char* owner;
  std::vector<Token> journal;
  uint32_t prompt_tokens = 0;
  int since = 0;
};

SessionChoice Choose(const std::vector<Idle>& idle, const char* owner, std::vector<Token> prompt, uint32_t live_max,
                     TruncationClass truncation_class = TruncationClass::kFull, int ttl = 0) {
  std::vector<IdleSession> sessions;
  for (const Idle& one : idle) sessions.push_back({one.handle, one.owner, one.journal, one.prompt_tokens, Time(seconds(one.since))});
  return ChooseSession(sessions, {owner, prompt, truncation_class, seconds(ttl), Time(seconds(100)), static_cast<uint32_t>(idle.size()), live_max});
}

TEST(PoolPolicyTest, TakesTheOwnersLongestCommonPrefix) {
  const std::vector<Idle> idle = {{1, "a", {1, 2, 3}}, {2, "a", {1, 2, 3, 4, 5}}, {3, "a", {9, 9}}};
  EXPECT_EQ(Choose(idle, "a", {1, 2, 3, 4, 5, 6}, 8).reuse, 2u);
  EXPECT_EQ(Choose(idle, "a", {1, 2, 3, 7}, 8).reuse, 1u) << "equal prefix: the one that loses less";
  EXPECT_EQ(Choose(idle, "a", {9, 9}, 8).reuse, 3u);
  EXPECT_EQ(Choose(idle, "a", {4}, 8).reuse, std::nullopt);
  EXPECT_THAT(Choose(idle, "a", {4}, 8).release, IsEmpty());
}

TEST(PoolPolicyTest, NeverTakesAnotherOwnersSession) {
  const std::vector<Idle> idle = {{1, "a", {1, 2, 3}}};
  EXPECT_EQ(Choose(idle, "b", {1, 2, 3, 4}, 8).reuse, std::nullopt);
  const SessionChoice full = Choose(idle, "b", {1, 2, 3, 4}, 1);
  EXPECT_EQ(full.reuse, std::nullopt);
  EXPECT_THAT(full.release, ElementsAre(1));
}

TEST(PoolPolicyTest, KeepsALongConversationFromAShortCommonStart) {
  const std::vector<Token> start = {1, 2, 3}, other = {1, 2, 3, 50};
  std::vector<Token> conversation = start;
  for (Token token = 10; token < 20; ++token) conversation.push_back(token);
  const std::vector<Idle> idle = {{1, "a", conversation, 11}};
  EXPECT_EQ(Choose(idle, "a", other, 8).reuse, std::nullopt);
  EXPECT_EQ(Choose(idle, "a", other, 1).reuse, 1u) << "no room: it would go anyway";
  EXPECT_THAT(Choose(idle, "a", other, 1).release, IsEmpty());
  EXPECT_EQ(Choose(idle, "a", start, 8).reuse, 1u) << "the whole prompt is held";
  // A short prompt with a long answer, continued: the template left the thoughts out.
  EXPECT_EQ(Choose({{1, "a", conversation, 3}}, "a", other, 8).reuse, 1u);
}

TEST(PoolPolicyTest, ReleasesTheLeastRecentlyUsedForANewOne) {
  const std::vector<Idle> idle = {{1, "a", {1}, 0, 30}, {2, "b", {2}, 0, 10}, {3, "c", {3}, 0, 20}};
  EXPECT_THAT(Choose(idle, "d", {9}, 3).release, ElementsAre(2));
  EXPECT_THAT(Choose(idle, "d", {9}, 2).release, ElementsAre(2, 3)) << "the route has become smaller";
  EXPECT_THAT(Choose(idle, "d", {9}, 4).release, IsEmpty());
}

TEST(PoolPolicyTest, ForgetsWhatTheStagesHaveForgotten) {
  const std::vector<Idle> idle = {{1, "a", {1, 2}, 0, 10}, {2, "a", {1}, 0, 60}};
  const SessionChoice choice = Choose(idle, "a", {1, 2, 3}, 8, TruncationClass::kFull, 60);
  EXPECT_EQ(choice.reuse, 2u);
  EXPECT_THAT(choice.release, ElementsAre(1));
}

TEST(PoolPolicyTest, ARecurrentSessionIsTakenWholeOrNotAtAll) {
  constexpr auto kWhole = TruncationClass::kWhole;
  const std::vector<Idle> idle = {{1, "a", {1, 2, 3}, 3}};
  EXPECT_EQ(Choose(idle, "a", {1, 2, 3, 4}, 8, kWhole).reuse, 1u);
  EXPECT_EQ(Choose(idle, "a", {1, 2, 4}, 8, kWhole).reuse, std::nullopt);
  EXPECT_EQ(Choose(idle, "a", {1, 2, 3}, 8, kWhole).reuse, std::nullopt) << "its last token would have to be computed again";
}

}  // namespace
}  // namespace meshnet
