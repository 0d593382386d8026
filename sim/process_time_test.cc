#include "process_time.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace meshnet::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;

class ProcessTimeTest : public ::testing::Test {
 protected:
  void RunAll() {
    while (!loop_.empty()) loop_.Step();
  }
  int64_t now_ms() const { return std::chrono::duration_cast<milliseconds>(loop_.now() - begin_).count(); }
  void Say(const std::string& what) { said_.push_back(std::to_string(now_ms()) + " " + what); }

  EventLoop loop_;
  const Time begin_ = loop_.now();
  ProcessTime process_{loop_};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ready_ = false;
  std::vector<std::string> said_;
};

TEST_F(ProcessTimeTest, EventsComeInOrderOfTimeAndThenOfAsking) {
  loop_.After(milliseconds(2), [this] { Say("c"); });
  loop_.After(milliseconds(1), [this] { Say("a"); });
  loop_.After(milliseconds(1), [this] { Say("b"); });
  loop_.Cancel(loop_.After(milliseconds(1), [this] { Say("never"); }));
  RunAll();
  EXPECT_THAT(said_, ElementsAre("1 a", "1 b", "2 c"));
}

TEST_F(ProcessTimeTest, FibersSleepBesideEachOther) {
  auto one = process_.Start([this] {
    for (int i = 0; i < 3; ++i) process_.Sleep(milliseconds(10)), Say("one");
  });
  auto two = process_.Start([this] { process_.Sleep(milliseconds(15)), Say("two"); });
  RunAll();
  EXPECT_THAT(said_, ElementsAre("10 one", "15 two", "20 one", "30 one"));
}

TEST_F(ProcessTimeTest, AWaitEndsByItsNotifyOrItsTime) {
  auto waiter = process_.Start([this] {
    std::unique_lock lock(mutex_);
    EXPECT_FALSE(process_.WaitFor(changed_, lock, milliseconds(5), [this] { return ready_; }));
    Say("late");
    EXPECT_TRUE(process_.WaitFor(changed_, lock, seconds(5), [this] { return ready_; }));
    EXPECT_TRUE(lock.owns_lock());
    Say("ready");
  });
  loop_.After(milliseconds(7), [this] { process_.Notify(changed_); });  // for nothing
  loop_.After(milliseconds(9), [this] { ready_ = true, process_.Notify(changed_); });
  RunAll();
  EXPECT_THAT(said_, ElementsAre("5 late", "9 ready"));
}

TEST_F(ProcessTimeTest, APausedProcessGoesOnLaterAndItsClockHasMoved) {
  auto sleeper = process_.Start([this] { process_.Sleep(milliseconds(10)), Say("awake"); });
  process_.At(begin_ + milliseconds(20), [this] { Say("event"); });
  loop_.After(milliseconds(5), [this] { process_.PauseUntil(begin_ + milliseconds(100)); });
  loop_.After(milliseconds(6), [this] { process_.Jump(seconds(1)); });
  RunAll();
  EXPECT_THAT(said_, ElementsAre("100 awake", "100 event"));
  EXPECT_EQ(process_.Now(), loop_.now() + seconds(1));
}

TEST_F(ProcessTimeTest, WhoEndsAPieceOfWorkWaitsForIt) {
  auto owner = process_.Start([this] {
    auto work = process_.Start([this] { process_.Sleep(milliseconds(30)), Say("work"); });
    process_.Sleep(milliseconds(1));
    work.reset();
    Say("owner");
  });
  RunAll();
  EXPECT_THAT(said_, ElementsAre("30 work", "30 owner"));
}

}  // namespace
}  // namespace meshnet::sim
