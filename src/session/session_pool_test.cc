#include "session/session_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "base/system_clock.h"
#include "session/scripted_stage.h"

namespace meshnet {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

ShardDescription Shard() {
  ShardDescription d;
  d.state = ShardState::kServing;
  d.layer_count = 20;
  d.range = {0, 20};
  d.boundary_width = 4;
  d.vocabulary_size = 1000;
  d.limits = {.sessions_max = 2, .context_tokens = 64, .budget_tokens = 512, .ttl_seconds = 600, .chunk_rows_max = 8, .window_steps = 4, .frame_bytes_max = 0};
  return d;
}

class NullSink : public AnswerSink {
 public:
  SinkVerdict OnToken(const SampledToken&) override { return SinkVerdict::kGoOn; }
};

class SessionPoolTest : public ::testing::Test {
 protected:
  SessionPoolTest() : stage_("a:1", Shard()), route_({&stage_.link}, clock_) { EXPECT_TRUE(route_.Connect(seconds(5)).ok()); }

  Time Soon() const { return clock_.Now() + seconds(60); }

  SessionPool::Lease Take(SessionPool& pool, const std::string& owner, std::vector<Token> prompt) {
    auto result = pool.Acquire(owner, prompt, Soon(), nullptr);
    MESHNET_CHECK(std::holds_alternative<SessionPool::Lease>(result));
    return std::move(std::get<SessionPool::Lease>(result));
  }

  // Acquires, answers, gives back; returns the session's id and what it reused.
  std::pair<SessionId, uint32_t> Chat(SessionPool& pool, const std::string& owner, std::vector<Token> prompt) {
    SessionPool::Lease lease = Take(pool, owner, prompt);
    NullSink sink;
    auto result = lease.session().Answer({prompt, SamplingParams(), 2}, sink);
    MESHNET_CHECK(std::holds_alternative<AnswerReport>(result));
    return {lease.session().id(), std::get<AnswerReport>(result).cached_tokens};
  }

  SystemClock clock_;
  ScriptedStage stage_;
  Route route_;
};

TEST_F(SessionPoolTest, AnOwnersNextPromptFindsItsSessionAndNobodyElses) {
  SessionPool pool(route_, clock_, {});
  const auto [a, a_cached] = Chat(pool, "a", {1, 2, 3, 4});
  EXPECT_EQ(a_cached, 0u);
  const auto [b, b_cached] = Chat(pool, "b", {1, 2, 3, 4});
  EXPECT_NE(b, a);
  EXPECT_EQ(b_cached, 0u);
  const auto [again, again_cached] = Chat(pool, "a", {1, 2, 3, 4, 5});
  EXPECT_EQ(again, a);
  EXPECT_EQ(again_cached, 4u);
  EXPECT_EQ(pool.counts().idle, 2u);
  EXPECT_EQ(pool.counts().answers_max, 2u);
}

TEST_F(SessionPoolTest, ANewOwnerTakesTheRoomOfTheLeastRecentlyUsed) {
  SessionPool pool(route_, clock_, {});
  const SessionId a = Chat(pool, "a", {1, 2, 3}).first;
  const SessionId b = Chat(pool, "b", {1, 2, 3}).first;
  Chat(pool, "c", {1, 2, 3});
  EXPECT_EQ(stage_.sessions_live(), 2u);
  EXPECT_EQ(Chat(pool, "b", {1, 2, 3}).first, b);
  EXPECT_NE(Chat(pool, "a", {1, 2, 3}).first, a);
}

TEST_F(SessionPoolTest, ADiscardedOrEmptySessionIsReleased) {
  SessionPool pool(route_, clock_, {});
  {
    SessionPool::Lease lease = Take(pool, "a", {1, 2});
    NullSink sink;
    lease.session().Answer({{1, 2}, SamplingParams(), 1}, sink);
    EXPECT_EQ(stage_.sessions_live(), 1u);
    lease.Discard();
  }
  EXPECT_EQ(stage_.sessions_live(), 0u);
  { SessionPool::Lease unused = Take(pool, "a", {1, 2}); }
  EXPECT_EQ(pool.counts().idle, 0u);
}

TEST_F(SessionPoolTest, RefusesAtTheBoundTheDeadlineAndOnCancel) {
  SessionPoolOptions options;
  options.waiting_max = 1;
  SessionPool pool(route_, clock_, options);
  SessionPool::Lease one = Take(pool, "a", {1}), two = Take(pool, "a", {1});
  EXPECT_EQ(pool.counts().answering, 2u);
  const std::vector<Token> prompt = {1};
  EXPECT_EQ(std::get<TurnRefusal>(pool.Acquire("a", prompt, clock_.Now(), nullptr)), TurnRefusal::kDeadline);
  EXPECT_EQ(std::get<TurnRefusal>(pool.Acquire("a", prompt, Soon(), [] { return true; })), TurnRefusal::kCancelled);

  std::atomic<bool> cancel{false};
  std::latch asked(1);
  std::once_flag once;
  std::thread waiter([&] {
    auto result = pool.Acquire("a", prompt, Soon(), [&] {
      std::call_once(once, [&] { asked.count_down(); });
      return cancel.load();
    });
    EXPECT_EQ(std::get<TurnRefusal>(result), TurnRefusal::kCancelled);
  });
  asked.wait();
  EXPECT_EQ(pool.counts().waiting, 1u);
  EXPECT_EQ(std::get<TurnRefusal>(pool.Acquire("a", prompt, Soon(), nullptr)), TurnRefusal::kLineFull);
  cancel = true;
  waiter.join();
  EXPECT_EQ(pool.counts().waiting, 0u);
}

TEST_F(SessionPoolTest, ManyPlacesAreTakenTogetherOrNotAtAll) {
  SessionPoolOptions options;
  options.waiting_max = 3;
  SessionPool pool(route_, clock_, options);
  using Places = std::vector<SessionPool::Place>;
  EXPECT_EQ(pool.counts().places_max(), 5u);
  EXPECT_EQ(std::get<SessionPool::Counts>(pool.Reserve(6)).room(), 5u);
  EXPECT_EQ(pool.counts().waiting, 0u) << "what was refused takes no place";
  const std::vector<Token> prompt = {1};
  {
    Places four = std::get<Places>(pool.Reserve(4));
    EXPECT_EQ(pool.counts().waiting, 4u);
    EXPECT_EQ(std::get<SessionPool::Counts>(pool.Reserve(2)).room(), 1u);
    {
      // A place is a right to wait, not a turn: others go before it while nobody waits with it.
      SessionPool::Lease other = Take(pool, "a", prompt);
      EXPECT_EQ(std::get<TurnRefusal>(pool.Acquire("a", prompt, Soon(), nullptr)), TurnRefusal::kLineFull);
      auto mine = pool.AcquireAt(std::move(four[0]), "b", prompt, Soon(), nullptr);
      ASSERT_TRUE(std::holds_alternative<SessionPool::Lease>(mine));
      EXPECT_EQ(pool.counts().answering, 2u);
      EXPECT_EQ(pool.counts().waiting, 3u);
      EXPECT_EQ(std::get<TurnRefusal>(pool.AcquireAt(std::move(four[1]), "b", prompt, clock_.Now(), nullptr)), TurnRefusal::kDeadline);
      EXPECT_EQ(pool.counts().waiting, 2u);
    }
    EXPECT_EQ(pool.counts().room(), 3u);
  }
  EXPECT_EQ(pool.counts().room(), 5u) << "unused places come back";
  Places one = std::get<Places>(pool.Reserve(1));
  pool.Stop(seconds(5));
  EXPECT_EQ(std::get<TurnRefusal>(pool.AcquireAt(std::move(one[0]), "b", prompt, Soon(), nullptr)), TurnRefusal::kStopped);
  EXPECT_EQ(pool.counts().waiting, 0u);
}

TEST_F(SessionPoolTest, OneMayGoBeforeTheLine) {
  SessionPoolOptions options;
  options.answers_max = 1;
  options.waiting_max = 1;
  SessionPool pool(route_, clock_, options);
  const std::vector<Token> prompt = {1};
  std::optional<SessionPool::Lease> busy = Take(pool, "a", prompt);
  std::mutex mutex;
  std::vector<std::string> went;
  auto go = [&](const std::string& name, auto acquire) {
    auto turn = (pool.*acquire)("b", prompt, Soon(), nullptr);
    ASSERT_TRUE(std::holds_alternative<SessionPool::Lease>(turn));
    std::lock_guard lock(mutex);
    went.push_back(name);
  };
  auto await = [&pool](uint32_t waiting) {
    while (pool.counts().waiting < waiting) std::this_thread::yield();
  };
  std::thread last([&] { go("last", &SessionPool::Acquire); });
  await(1);
  std::thread first([&] { go("first", &SessionPool::AcquireFirst); });
  await(2);
  busy.reset();
  first.join();
  last.join();
  EXPECT_EQ(went, (std::vector<std::string>{"first", "last"}));
}

TEST_F(SessionPoolTest, StopSendsTheLineHomeAndReleasesTheIdle) {
  SessionPool pool(route_, clock_, {});
  Chat(pool, "a", {1, 2});
  {
    SessionPool::Lease one = Take(pool, "b", {1}), two = Take(pool, "c", {1});
    std::latch asked(1);
    std::once_flag once;
    std::thread waiter([&] {
      const std::vector<Token> prompt = {1};
      auto result = pool.Acquire("d", prompt, Soon(), [&] {
        std::call_once(once, [&] { asked.count_down(); });
        return false;
      });
      EXPECT_EQ(std::get<TurnRefusal>(result), TurnRefusal::kStopped);
    });
    asked.wait();
    pool.Stop(seconds(5));
    waiter.join();
    const std::vector<Token> prompt = {1};
    EXPECT_EQ(std::get<TurnRefusal>(pool.Acquire("d", prompt, Soon(), nullptr)), TurnRefusal::kStopped);
  }
  EXPECT_EQ(stage_.sessions_live(), 0u);
  EXPECT_TRUE(pool.Sessions().empty());
}

// A stage that never answers one kind of call.
class StandingLink : public ShardLink {
 public:
  enum class Call { kOpen, kForward, kRelease };
  StandingLink(ShardLink& inner, Call standing) : inner_(inner), standing_(standing) {}

  void Describe(Time deadline, Done<ShardDescription> done) override { inner_.Describe(deadline, std::move(done)); }
  void Open(OpenRequest request, Time deadline, Done<OpenReply> done) override {
    if (!Stands(Call::kOpen)) inner_.Open(std::move(request), deadline, std::move(done));
  }
  void Forward(const Step& step, Time deadline, Done<StepResult> done) override {
    if (!Stands(Call::kForward)) inner_.Forward(step, deadline, std::move(done));
  }
  void Cancel(SessionKey) override {}
  void Release(SessionKey key, Time deadline, Done<ReleaseOutcome> done) override {
    if (!Stands(Call::kRelease)) inner_.Release(key, deadline, std::move(done));
  }
  void Stats(Time deadline, Done<ShardStats> done) override { inner_.Stats(deadline, std::move(done)); }
  void Drain(Time deadline, Done<ShardState> done) override { inner_.Drain(deadline, std::move(done)); }
  std::string address() const override { return inner_.address(); }

  std::latch asked{1};  // it was asked what it does not answer

 private:
  bool Stands(Call call) {
    if (call == standing_ && !asked.try_wait()) asked.count_down();
    return call == standing_;
  }
  ShardLink& inner_;
  const Call standing_;
};

// Whose client goes away as soon as the stage stands.
class LeavingSink : public NullSink {
 public:
  explicit LeavingSink(StandingLink& link) : link_(link) {}
  bool Cancelled() override { return link_.asked.try_wait(); }

 private:
  StandingLink& link_;
};

// Moved by the test only, so no wait of a session ever comes to its own end.
class HandClock : public Clock {
 public:
  Time Now() const override { return Time(Duration(nanoseconds_.load())); }
  void Advance(Duration duration) { nanoseconds_ += duration.count(); }

 private:
  std::atomic<int64_t> nanoseconds_{1};
};

TEST_F(SessionPoolTest, AfterStopNobodyWaitsForAStageThatStands) {
  for (const StandingLink::Call call : {StandingLink::Call::kOpen, StandingLink::Call::kForward, StandingLink::Call::kRelease}) {
    StandingLink link(stage_.link, call);
    Route route({&link}, clock_);
    ASSERT_TRUE(route.Connect(seconds(5)).ok());
    HandClock clock;
    SessionPool pool(route, clock, {});
    std::thread caller([&] {
      const std::vector<Token> prompt = {1, 2};
      auto turn = pool.Acquire("a", prompt, clock.Now() + seconds(60), nullptr);
      SessionPool::Lease lease = std::move(std::get<SessionPool::Lease>(turn));
      LeavingSink sink(link);
      lease.session().Answer({prompt, SamplingParams(), 1}, sink);
      lease.Discard();
    });
    link.asked.wait();
    clock.Advance(seconds(1));  // it is time to look whether the client is there
    pool.Stop(seconds(0));
    caller.join();  // which it does not without the word of Stop
    EXPECT_EQ(pool.counts().answering, 0u);
  }
}

TEST_F(SessionPoolTest, ShowsSessionsWithoutTheirWholeId) {
  SessionPool pool(route_, clock_, {});
  Chat(pool, "a", {1, 2, 3});
  SessionPool::Lease lease = Take(pool, "b", {9});
  const auto sessions = pool.Sessions();
  ASSERT_EQ(sessions.size(), 2u);
  for (const SessionPool::SessionInfo& info : sessions) {
    EXPECT_EQ(info.id_prefix.size(), 8u);
    EXPECT_EQ(info.answering, info.owner == "b");
    EXPECT_EQ(info.past_len, PastLen(info.owner == "a" ? 4 : 0));
  }
}

TEST_F(SessionPoolTest, ManyCallersNeverHoldMoreThanTheRouteAndAllGetTheirTurn) {
  SessionPool pool(route_, clock_, {});
  std::atomic<int> holding{0}, most{0}, served{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 8; ++caller) {
    callers.emplace_back([&, caller] {
      for (int turn = 0; turn < 20; ++turn) {
        const std::vector<Token> prompt = {caller, turn, 1};
        SessionPool::Lease lease = Take(pool, "owner" + std::to_string(caller % 3), prompt);
        const int now = ++holding;
        int seen = most.load();
        while (now > seen && !most.compare_exchange_weak(seen, now)) {
        }
        NullSink sink;
        auto result = lease.session().Answer({prompt, SamplingParams(), 3}, sink);
        served += std::holds_alternative<AnswerReport>(result) ? 1 : 0;
        --holding;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(served, 160);
  EXPECT_LE(most, 2);
  EXPECT_LE(stage_.sessions_live(), 2u);
  pool.Stop(seconds(5));
  EXPECT_EQ(stage_.sessions_live(), 0u);
}

}  // namespace
}  // namespace meshnet
