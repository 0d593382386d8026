#include "wire/deadline_timer.h"

#include <gtest/gtest.h>

#include <future>
#include <vector>

namespace meshnet {
namespace {

TEST(DeadlineTimerTest, RunsWhatIsDueInOrderAndNothingElse) {
  std::promise<void> gate, done;
  std::vector<int> ran;
  DeadlineTimer timer;
  const Time now = std::chrono::steady_clock::now();
  timer.Add(Time::min(), [opened = gate.get_future().share()] { opened.wait(); });  // keeps the thread busy while the rest is added
  timer.Add(now + std::chrono::hours(1), [&] { ran.push_back(99); });
  timer.Add(now - std::chrono::nanoseconds(1), [&] { ran.push_back(3), done.set_value(); });
  DeadlineTimer::Id removed = timer.Add(now - std::chrono::nanoseconds(2), [&] { ran.push_back(2); });
  timer.Add(now - std::chrono::nanoseconds(3), [&] { ran.push_back(1); });
  EXPECT_TRUE(timer.Remove(removed));
  EXPECT_FALSE(timer.Remove(removed));
  gate.set_value();
  done.get_future().wait();
  EXPECT_EQ(ran, (std::vector<int>{1, 3}));
}

TEST(DeadlineTimerTest, AFunctionMayAddAndRemove) {
  std::promise<bool> done;
  DeadlineTimer timer;
  DeadlineTimer::Id later = timer.Add(std::chrono::steady_clock::now() + std::chrono::hours(1), [] {});
  timer.Add(Time::min(), [&] {
    bool removed = timer.Remove(later);
    timer.Add(Time::min(), [&done, removed] { done.set_value(removed); });
  });
  EXPECT_TRUE(done.get_future().get());
}

}  // namespace
}  // namespace meshnet
