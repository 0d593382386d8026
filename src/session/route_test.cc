#include "session/route.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <thread>

#include "base/system_clock.h"
#include "base/waiting.h"
#include "session/route_verdict.h"
#include "session/scripted_link.h"

namespace meshnet {
namespace {

using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

ShardDescription Shard(uint32_t begin, uint32_t end, uint8_t incarnation = 1) {
  ShardDescription d;
  d.state = ShardState::kServing;
  d.incarnation.bytes.fill(incarnation);
  d.model_root.bytes.fill(0xab);
  d.layer_count = 20;
  d.range = {begin, end};
  d.boundary_width = 8;
  d.limits = {.sessions_max = 8, .context_tokens = 64, .budget_tokens = 512, .ttl_seconds = 600, .chunk_rows_max = 16, .window_steps = 4, .frame_bytes_max = 0};
  return d;
}

Refusal Refuse(Reason reason, std::string message) {
  Refusal refusal;
  refusal.reason = reason;
  refusal.message = std::move(message);
  return refusal;
}

TEST(RouteVerdictTest, NamesStageRangeAddressAndCause) {
  struct Row {
    const char* name;
    Reply<ShardDescription> reply;  // of the second stage, [10,20) at "b:1" unless it is unknown
    bool known;
    RouteState state;
    StatusCode code;
    std::vector<const char*> says;
  };
  ShardDescription starting = Shard(10, 20), draining = Shard(10, 20), poisoned = Shard(10, 20), unread, gap = Shard(11, 20);
  starting.state = ShardState::kStarting;
  draining.state = ShardState::kDraining;
  poisoned.state = ShardState::kPoisoned;
  const Row rows[] = {
      {"serves", Shard(10, 20), true, RouteState::kServing, StatusCode::kOk, {}},
      {"silent", TransportFault{"connection refused"}, true, RouteState::kBroken, StatusCode::kPeerUnreachable, {"[10,20)", "b:1", "connection refused"}},
      {"silent from the start", TransportFault{"connection refused"}, false, RouteState::kBroken, StatusCode::kPeerUnreachable,
       {"b:1", "connection refused", "layers [10,20) are missing"}},
      {"loading", starting, true, RouteState::kBroken, StatusCode::kPeerUnreachable, {"[10,20)", "b:1", "loading"}},
      {"loading, range unknown", unread, false, RouteState::kBroken, StatusCode::kPeerUnreachable, {"b:1", "loading", "layers [10,20) are missing"}},
      {"draining", draining, true, RouteState::kDraining, StatusCode::kPeerUnreachable, {"[10,20)", "b:1", "draining"}},
      {"poisoned", poisoned, true, RouteState::kBroken, StatusCode::kPeerUnreachable, {"[10,20)", "b:1", "invariant"}},
      {"no certificate", Refuse(Reason::kUnauthenticated, "no client certificate"), true, RouteState::kRefused, StatusCode::kRefused,
       {"[10,20)", "b:1", "unauthenticated", "no client certificate"}},
      {"draining refusal", Refuse(Reason::kDraining, ""), true, RouteState::kDraining, StatusCode::kPeerUnreachable, {"draining"}},
      {"a gap", gap, true, RouteState::kRefused, StatusCode::kRefused, {"[10,11)"}},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    std::vector<RouteMember> members = {{"a:1", Shard(0, 10)}, {"b:1", std::nullopt}};
    if (row.known) members[1].known = Shard(10, 20);
    RouteVerdict verdict = JudgeRoute(members, {Shard(0, 10), row.reply}, std::nullopt);
    EXPECT_EQ(verdict.state, row.state);
    EXPECT_EQ(verdict.status.code(), row.code);
    for (const char* word : row.says) EXPECT_THAT(verdict.status.message(), HasSubstr(word));
    EXPECT_THAT(verdict.status.message(), Not(HasSubstr("a:1")));  // the healthy stage is not blamed
  }
}

TEST(RouteVerdictTest, TheModelOfTheFirstConnectStays) {
  Sha256Digest other;
  other.bytes.fill(0xcd);
  RouteVerdict verdict = JudgeRoute({{"a:1", std::nullopt}}, {Shard(0, 20)}, other);
  EXPECT_EQ(verdict.state, RouteState::kRefused);
  EXPECT_THAT(verdict.status.message(), AllOf(HasSubstr("cdcd"), HasSubstr("abab"), HasSubstr("a:1"), HasSubstr("[0,20)")));
}

// Two stages whose description a test may change at any time.
class RouteTest : public ::testing::Test {
 protected:
  RouteTest() {
    for (size_t i = 0; i < 2; ++i) {
      links_[i].on_describe = [this, i]() -> Reply<ShardDescription> {
        ++asked_;
        std::lock_guard lock(mutex_);
        return replies_[i];
      };
    }
  }

  void Answer(size_t stage, Reply<ShardDescription> reply) {
    std::lock_guard lock(mutex_);
    replies_[stage] = std::move(reply);
  }

  Time Soon() const { return clock_.Now() + seconds(60); }

  SystemClock clock_;
  std::mutex mutex_;
  Reply<ShardDescription> replies_[2] = {Shard(10, 20), Shard(0, 10)};
  std::atomic<int> asked_{0};
  ScriptedLink links_[2] = {ScriptedLink("b:1"), ScriptedLink("a:1")};
};

TEST_F(RouteTest, ConnectOrdersStagesByRange) {
  Route route({&links_[0], &links_[1]}, clock_);
  EXPECT_EQ(route.state(), RouteState::kConnecting);
  EXPECT_EQ(route.view(), nullptr);
  EXPECT_THAT(route.trouble(), Not(IsEmpty()));
  ASSERT_TRUE(route.Connect(seconds(5)).ok());
  EXPECT_EQ(route.state(), RouteState::kServing);
  EXPECT_THAT(route.trouble(), IsEmpty());
  auto view = route.view();
  ASSERT_NE(view, nullptr);
  EXPECT_EQ(view->stages[0].link, &links_[1]);
  EXPECT_EQ(view->stages[1].link, &links_[0]);
  EXPECT_EQ(view->generation, 1u);
  EXPECT_EQ(view->limits.chunk_rows_max, 16u);
  ASSERT_TRUE(route.Connect(seconds(5)).ok());
  EXPECT_EQ(route.generation(), 1u) << "the same stages are the same route";
}

TEST_F(RouteTest, ARouteThatNeverConnectedComesUpByItself) {
  Answer(0, TransportFault{"connection refused"});
  Route route({&links_[0], &links_[1]}, clock_);
  Status status = route.Connect(seconds(5));
  EXPECT_EQ(status.code(), StatusCode::kPeerUnreachable);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("b:1"), HasSubstr("connection refused"), HasSubstr("[10,20)")));
  EXPECT_EQ(route.state(), RouteState::kConnecting);
  Answer(0, Shard(10, 20));
  EXPECT_TRUE(route.WaitForRepair(0, Soon(), nullptr).ok());
  EXPECT_EQ(route.state(), RouteState::kServing);
}

TEST_F(RouteTest, ALostStageIsANewGenerationOnceItIsBack) {
  Route route({&links_[0], &links_[1]}, clock_);
  ASSERT_TRUE(route.Connect(seconds(5)).ok());
  auto old_view = route.view();
  Answer(0, TransportFault{"connection refused"});
  route.ReportLost(1, "stage [10,20) at b:1: stream broke");
  EXPECT_NE(route.state(), RouteState::kServing);
  EXPECT_EQ(route.view(), nullptr);
  EXPECT_THAT(route.trouble(), AllOf(HasSubstr("[10,20)"), HasSubstr("b:1")));

  std::vector<std::thread> waiters;
  std::atomic<int> repaired{0};
  for (int i = 0; i < 4; ++i) {
    waiters.emplace_back([&] { repaired += route.WaitForRepair(1, Soon(), nullptr).ok() ? 1 : 0; });
  }
  Answer(0, Shard(10, 20, 2));
  for (std::thread& waiter : waiters) waiter.join();
  EXPECT_EQ(repaired, 4);
  EXPECT_EQ(route.generation(), 2u);
  EXPECT_EQ(route.view()->stages[1].description.incarnation, Shard(10, 20, 2).incarnation);
  EXPECT_EQ(old_view->stages[1].description.incarnation, Shard(10, 20, 1).incarnation) << "a view in use does not change";
}

TEST_F(RouteTest, AnOldReportIsANoOp) {
  Route route({&links_[0], &links_[1]}, clock_);
  ASSERT_TRUE(route.Connect(seconds(5)).ok());
  route.ReportLost(1, "first");
  ASSERT_TRUE(route.WaitForRepair(1, Soon(), nullptr).ok());
  route.ReportLost(1, "the same loss, seen by another session");
  EXPECT_EQ(route.state(), RouteState::kServing);
  EXPECT_EQ(route.generation(), 2u);
}

TEST_F(RouteTest, AnotherModelIsRefusedAndEndsTheWait) {
  Route route({&links_[0], &links_[1]}, clock_);
  ASSERT_TRUE(route.Connect(seconds(5)).ok());
  ShardDescription left = Shard(0, 10), right = Shard(10, 20);
  left.model_root.bytes.fill(0xcd);
  right.model_root.bytes.fill(0xcd);
  Answer(0, right);
  Answer(1, left);
  route.ReportLost(1, "gone");
  Status status = route.WaitForRepair(1, Soon(), nullptr);
  EXPECT_EQ(status.code(), StatusCode::kRefused);
  EXPECT_EQ(route.state(), RouteState::kRefused);
  EXPECT_THAT(route.trouble(), AllOf(HasSubstr("abab"), HasSubstr("cdcd")));
}

TEST_F(RouteTest, ADrainingStageDoesNotServe) {
  Route route({&links_[0], &links_[1]}, clock_);
  ShardDescription draining = Shard(10, 20);
  draining.state = ShardState::kDraining;
  Answer(0, draining);
  EXPECT_EQ(route.Connect(seconds(5)).code(), StatusCode::kPeerUnreachable);
  EXPECT_EQ(route.state(), RouteState::kDraining);
  EXPECT_EQ(route.view(), nullptr);
}

TEST_F(RouteTest, TheWaitEndsAtItsDeadlineAndOnCancel) {
  Answer(0, TransportFault{"connection refused"});
  Route route({&links_[0], &links_[1]}, clock_);
  Status late = route.WaitForRepair(0, clock_.Now(), nullptr);
  EXPECT_EQ(late.code(), StatusCode::kPeerUnreachable);
  int polls = 0;
  Status cancelled = route.WaitForRepair(0, Soon(), [&] { return ++polls == 2; });
  EXPECT_EQ(cancelled.code(), StatusCode::kFailure);
}

TEST_F(RouteTest, ConnectIsNotOkWhenAStageWasLostMeanwhile) {
  std::atomic<Route*> lost{nullptr};
  links_[1].on_describe = [&, describe = links_[1].on_describe, here = std::this_thread::get_id()] {
    // Not when the route itself looks, on a thread of its own.
    Route* route = std::this_thread::get_id() == here ? lost.load() : nullptr;
    if (route != nullptr) route->ReportLost(route->generation(), "seen by a session");
    return describe();
  };
  Route route({&links_[0], &links_[1]}, clock_);
  ASSERT_TRUE(route.Connect(seconds(5)).ok());
  lost = &route;
  EXPECT_EQ(route.Connect(seconds(5)).code(), StatusCode::kPeerUnreachable);
}

// No wait of it ends by the time alone.
class PatientClock : public SystemClock {
 public:
  Waiting& waiting() const override { return waiting_; }

 private:
  class Patient : public Waiting {
   public:
    bool WaitFor(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, Duration, const std::function<bool()>& holds) override {
      changed.wait(lock, holds);
      return true;
    }
    void Notify(std::condition_variable& changed) override { changed.notify_all(); }
    void Sleep(Duration) override {}
    std::unique_ptr<Background> Start(std::function<void()> work) override { return SystemClock().waiting().Start(std::move(work)); }
  };
  mutable Patient waiting_;
};

// Its waits of two seconds or more end when the test says so, shorter ones at once.
class LeapingClock : public SystemClock {
 public:
  Waiting& waiting() const override { return waiting_; }
  void Leap() { ++waiting_.leaps; }
  int long_waits() const { return waiting_.long_waits; }

 private:
  class Leaping : public Waiting {
   public:
    bool WaitFor(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, Duration at_most, const std::function<bool()>& holds) override {
      if (at_most < seconds(2) || holds()) return holds();
      ++long_waits;
      while (!holds() && leaps == 0) changed.wait_for(lock, std::chrono::milliseconds(1));
      if (!holds()) --leaps;
      return holds();
    }
    void Notify(std::condition_variable& changed) override { changed.notify_all(); }
    void Sleep(Duration) override {}
    std::unique_ptr<Background> Start(std::function<void()> work) override { return SystemClock().waiting().Start(std::move(work)); }

    std::atomic<int> leaps{0}, long_waits{0};
  };
  mutable Leaping waiting_;
};

TEST_F(RouteTest, AMissedLookIsRepeatedAtOnce) {
  LeapingClock clock;
  Route route({&links_[0], &links_[1]}, clock);
  ASSERT_TRUE(route.Connect(seconds(5)).ok());
  Answer(0, TransportFault{"connection refused"});  // and nobody reports it
  clock.Leap();
  // The watch waited for its first look; if it waits like that again, it has not found out.
  while (route.state() == RouteState::kServing && clock.long_waits() < 2) std::this_thread::yield();
  EXPECT_EQ(route.state(), RouteState::kBroken);
}

// Answers Describe until told to stand still.
class StandingLink : public ScriptedLink {
 public:
  StandingLink(std::string address) : ScriptedLink(std::move(address)) {}
  void Describe(Time deadline, Done<ShardDescription> done) override {
    if (!stands) return ScriptedLink::Describe(deadline, std::move(done));
    std::call_once(once_, [this] { asked.count_down(); });
  }
  std::atomic<bool> stands{false};
  std::latch asked{1};

 private:
  std::once_flag once_;
};

TEST_F(RouteTest, ItsEndWaitsForNoStage) {
  StandingLink link("a:1");
  link.on_describe = [] { return Reply<ShardDescription>(Shard(0, 20)); };
  PatientClock clock;
  {
    Route route({&link}, clock);
    ASSERT_TRUE(route.Connect(seconds(5)).ok());
    link.stands = true;
    route.ReportLost(1, "gone");
    link.asked.wait();
  }  // and it is gone, although the repair has no answer
}

TEST_F(RouteTest, AStageRestartedWhileNobodyAskedIsNoticed) {
  Route route({&links_[0], &links_[1]}, clock_);
  ASSERT_TRUE(route.Connect(seconds(5)).ok());
  Answer(0, Shard(10, 20, 2));
  EXPECT_TRUE(route.WaitForRepair(1, Soon(), nullptr).ok());  // no report: the watch sees it
  EXPECT_EQ(route.generation(), 2u);
}

}  // namespace
}  // namespace meshnet
