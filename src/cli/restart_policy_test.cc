#include "cli/restart_policy.h"

#include <gtest/gtest.h>

namespace meshnet::cli {
namespace {

using Verdict = RestartPolicy::Verdict;
using std::chrono::seconds;

TEST(RestartPolicyTest, GivesUpOnTheDeathAfterTheLastRestartOfTheWindow) {
  RestartPolicy policy(5, seconds(60));
  Time now{};
  for (int i = 0; i < 5; ++i) EXPECT_EQ(policy.OnDeath(now + seconds(i)), Verdict::kRestart) << i;
  EXPECT_EQ(policy.OnDeath(now + seconds(59)), Verdict::kGiveUp);
}

TEST(RestartPolicyTest, ForgetsARestartWhenTheWindowHasPassed) {
  RestartPolicy policy(5, seconds(60));
  Time now{};
  for (int i = 0; i < 5; ++i) (void)policy.OnDeath(now + seconds(i));
  EXPECT_EQ(policy.OnDeath(now + seconds(60)), Verdict::kRestart) << "the first restart is 60 s old";
  EXPECT_EQ(policy.OnDeath(now + seconds(60)), Verdict::kGiveUp) << "four old ones and the new one are within the window";
}

TEST(RestartPolicyTest, RareDeathsNeverEndIt) {
  RestartPolicy policy(5, seconds(60));
  Time now{};
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(policy.OnDeath(now += seconds(12)), Verdict::kRestart) << i;
}

TEST(RestartPolicyTest, EachDeathOfAWindowIsFollowedByALongerPause) {
  RestartPolicy policy(5, seconds(60));
  Duration last(-1);
  for (int i = 0; i < 5; ++i) {
    (void)policy.OnDeath(Time{} + seconds(i));
    EXPECT_GT(policy.Pause(), last) << i;
    last = policy.Pause();
  }
  (void)policy.OnDeath(Time{} + seconds(1000));
  EXPECT_EQ(policy.Pause(), Duration(0));
}

TEST(RestartPolicyTest, ZeroRestartsMeansTheFirstDeathEndsIt) {
  RestartPolicy policy(0, seconds(60));
  EXPECT_EQ(policy.OnDeath(Time{}), Verdict::kGiveUp);
}

}  // namespace
}  // namespace meshnet::cli
