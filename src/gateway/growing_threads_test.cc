#include "gateway/growing_threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>

namespace meshnet::gateway {
namespace {

TEST(GrowingThreadsTest, GivesEachBlockedJobAThreadUpToItsBound) {
  GrowingThreads threads(4);
  std::latch all_four(4), release(1);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(threads.Submit([&] {
      all_four.count_down();
      release.wait();
    }), GrowingThreads::Submitted::kStarted);
  }
  all_four.wait();  // would hang if one thread were shared
  std::atomic<bool> fifth_ran = false;
  EXPECT_EQ(threads.Submit([&] { fifth_ran = true; }), GrowingThreads::Submitted::kWaiting);
  EXPECT_FALSE(fifth_ran);
  release.count_down();
  threads.Stop();
  EXPECT_TRUE(fifth_ran);
  EXPECT_EQ(threads.Submit([] {}), GrowingThreads::Submitted::kStopped);
}

TEST(GrowingThreadsTest, RunsEverythingThatWasSubmitted) {
  std::atomic<int> ran = 0;
  {
    GrowingThreads threads(3);
    for (int i = 0; i < 1000; ++i) threads.Submit([&] { ++ran; });
  }
  EXPECT_EQ(ran, 1000);
}

}  // namespace
}  // namespace meshnet::gateway
