// A worker to ask: `--target`, or one in this process that the test may shape, hold and break.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <semaphore>
#include <string>
#include <vector>

#include "base/system_clock.h"
#include "engine/fake_engine.h"
#include "fake_worker_flags.h"
#include "raw_client.h"
#include "worker/test_shard.h"
#include "worker/worker_server.h"

namespace meshnet::conformance {

inline std::string target;  // empty: workers of our own

// Advanced by the test, read by every thread.
class TestClock : public Clock {
 public:
  Time Now() const override { return Time(Duration(nanoseconds_.load())); }
  void Advance(Duration duration) { nanoseconds_ += duration.count(); }

 private:
  std::atomic<int64_t> nanoseconds_{Duration(std::chrono::hours(1)).count()};
};

class ConformanceTest : public ::testing::Test {
 protected:
  // A worker for this test: the target, or one on the fake engine that `change` has shaped.
  void Connect(const std::function<void(FakeWorkerFlags&)>& change = {}) {
    std::string address = target;
    if (address.empty()) address = StartWorker(change);
    client_ = std::make_unique<Client>(address);
    Outcome<pb::DescribeReply> described = client_->Describe();
    ASSERT_TRUE(described.ok()) << described.Text();
    shard_ = described.reply;
    ASSERT_EQ(shard_.state(), pb::SHARD_STATE_SERVING);
    stream_ = std::make_unique<Stream>(*client_);
  }

  std::string StartWorker(const std::function<void(FakeWorkerFlags&)>& change) {
    FakeWorkerFlags flags;
    flags.worker.listen = "127.0.0.1:0";
    flags.worker.hot_kv = {.sessions_max = 4, .context_tokens = 64, .budget_tokens = 256, .ttl_seconds = 100};
    flags.chunk_rows_max = 16;
    flags.truncation_class = TruncationClass::kFull;
    if (change) change(flags);
    ShardDescription description = DescriptionOf(flags);
    description.incarnation = RandomId<Incarnation>();
    Result<std::unique_ptr<WorkerServer>> worker = WorkerServer::Start(
        flags.worker, description,
        [this, flags] {
          FakeEngineOptions options = EngineOptionsOf(flags);
          if (calls_are_counted_) options.on_run = [this](std::span<const EngineStep>) { calls_.acquire(); };
          auto engine = std::make_unique<GatedEngine>(options, gate_);
          engine_ = engine.get();
          return Result<std::unique_ptr<Engine>>(std::move(engine));
        },
        clock_);
    EXPECT_TRUE(worker.ok()) << worker.status().message();
    worker_ = std::move(worker).value();
    EXPECT_TRUE(worker_->host().WaitLoaded().ok());
    return worker_->address();
  }

  void TearDown() override {
    gate_.Open();
    calls_.release(1 << 20);
    stream_.reset();
    // A worker of somebody else gets its reservations back.
    if (!target.empty()) {
      for (const Session& session : sessions_) {
        for (uint64_t epoch : {2, 1}) client_->Release(session.Rival(epoch).ref());
      }
    }
    if (worker_ && worker_->host().trouble().ok()) worker_->host().Inspect([](ShardCore& core) { core.CheckInvariants(); });
  }

  Session NewSession() {
    sessions_.emplace_back(*client_, shard_);
    return sessions_.back();
  }
  // What a rejected call must leave as it is. Nobody else uses a worker of our own, so all its statistics but those of refusals hold still too.
  std::string Observe(Session session) {
    Outcome<pb::OpenReply> open = session.Open();
    std::string text = open.ok() ? open.reply.ShortDebugString() : open.Text();
    if (!target.empty()) return text;
    pb::StatsReply stats = client_->Stats().reply;
    stats.clear_refusals();
    return text + " " + stats.ShortDebugString();
  }
  // The refusal of a step, and that it changed nothing and is carried as the table says.
  std::string Refused(const Session& session, const pb::Step& step) {
    const std::string before = Observe(session);
    std::optional<pb::StepAnswer> answer = stream_->Ask(step);
    if (!answer) return "the stream ended";
    EXPECT_EQ(Observe(session), before);
    if (answer->has_error()) {
      EXPECT_FALSE(answer->error().message().empty());
      if (step.has_ref()) {
        EXPECT_EQ(answer->error().message().find(step.ref().route_session_id()), std::string::npos);
      }
      EXPECT_EQ(answer->error().incarnation(), shard_.incarnation());
      code_ = answer->error().grpc_code();
      error_ = answer->error();
    }
    return TextOf(*answer);
  }

  // Returns once the worker has read all that the stream sent, while its engine may be held: a step without address is answered at once.
  void AwaitArrival() {
    std::optional<pb::StepAnswer> answer = stream_->Ask(pb::Step());
    ASSERT_TRUE(answer);
    EXPECT_EQ(TextOf(*answer), "BAD_REQUEST/SHAPE");
  }

  EngineGate gate_;
  bool calls_are_counted_ = false;         // set before Connect: each engine call takes one of `calls_`
  std::counting_semaphore<> calls_{0};
  TestClock clock_;
  FakeEngine* engine_ = nullptr;
  std::unique_ptr<WorkerServer> worker_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<Stream> stream_;
  pb::DescribeReply shard_;
  std::vector<Session> sessions_;
  int code_ = -1;  // of the last refusal
  pb::ErrorDetail error_;
};

// For what needs a worker that the test may shape, hold or break.
class OwnWorkerTest : public ConformanceTest {
 protected:
  void SetUp() override {
    if (!target.empty()) GTEST_SKIP() << "needs a worker of its own, not --target";
  }
};

}  // namespace meshnet::conformance
