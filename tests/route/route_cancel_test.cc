// A client that goes away in each phase of its answer: the stages are free at once, and the next answer is right and reuses what was kept.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <thread>

#include "cluster.h"

namespace meshnet {
namespace {

using std::chrono::seconds;

// Cancels at the n-th time it is asked.
Client CancelAt(int n) {
  Client client;
  client.cancelled = [n, asked = 0]() mutable { return ++asked >= n; };
  return client;
}

TEST(RouteCancelTest, InEachPhaseTheSessionStaysRight) {
  for (TruncationClass truncation_class : {TruncationClass::kFull, TruncationClass::kWindow, TruncationClass::kWhole}) {
    ClusterOptions options;
    options.truncation_class = truncation_class;
    options.window_tokens = 8;
    Cluster cluster(options);
    const std::vector<Token> prompt = SomeTokens(1, 60);
    for (int at : {1, 2, 3, 4, 5, 8, 13}) {
      SCOPED_TRACE(std::string(Name(truncation_class)) + ", poll " + std::to_string(at));
      DrivenSession session(*cluster.route, cluster.clock, {}, "owner");
      const Told cut = Ask(session, prompt, 50, Lively(1), CancelAt(at));
      EXPECT_EQ(cut.report().end, AnswerEnd::kCancelled);
      std::vector<Token> expected = FakeAnswer(options.model, prompt, 50, Lively(1));
      ASSERT_LE(cut.tokens.size(), expected.size());
      expected.resize(cut.tokens.size());
      EXPECT_EQ(cut.tokens, expected);

      const uint32_t kept = session.past_len().value;
      const Told next = Ask(session, prompt, 5, Lively(2));
      EXPECT_EQ(next.tokens, FakeAnswer(options.model, prompt, 5, Lively(2)));
      if (truncation_class == TruncationClass::kFull) {
        EXPECT_EQ(next.report().cached_tokens, std::min(kept, 59u));
      }
      session.Release(seconds(30));
      EXPECT_EQ(cluster.Leftovers(), "");
    }
  }
}

// The engine of one stage stands still inside its second chunk until the client's cancel has reached the stage.
TEST(RouteCancelTest, WhileAStageComputesItsChunk) {
  for (size_t stage = 0; stage < 3; ++stage) {
    SCOPED_TRACE("stage " + std::to_string(stage));
    std::mutex mutex;  // guards all below
    std::condition_variable changed;
    int runs = 0;
    bool computing = false, cancelled = false;
    ClusterOptions options;
    options.on_run = [&](size_t at) {
      std::unique_lock lock(mutex);
      if (at != stage || ++runs != 2) return;
      computing = true;
      changed.wait(lock, [&] { return cancelled; });
    };
    Cluster cluster(options);
    cluster.link(stage).OnCancel([&] {
      std::lock_guard lock(mutex);
      cancelled = true;
      changed.notify_all();
    });
    Client client;
    client.cancelled = [&] {
      std::lock_guard lock(mutex);
      return computing;
    };
    DrivenSession session(*cluster.route, cluster.clock, {}, "owner");
    const std::vector<Token> prompt = SomeTokens(1, 200);
    const Told cut = Ask(session, prompt, 5, Lively(1), std::move(client));
    EXPECT_EQ(cut.report().end, AnswerEnd::kCancelled);
    EXPECT_TRUE(cut.tokens.empty());
    // What runs is not interrupted: its answer was waited for, so the session knows what it holds and needs no new epoch.
    const uint32_t kept = session.past_len().value;
    EXPECT_GE(kept, stage == 2 ? 32u : 0u);
    const Told next = Ask(session, prompt, 5, Lively(1));
    EXPECT_EQ(next.tokens, FakeAnswer({}, prompt, 5, Lively(1)));
    EXPECT_EQ(next.report().cached_tokens, kept);
    EXPECT_EQ(session.epoch(), Epoch(1));
    session.Release(seconds(30));
    EXPECT_EQ(cluster.Leftovers(), "");
  }
}

// One session is cancelled again and again; its neighbours never notice.
TEST(RouteCancelTest, NeighboursAreNotMoved) {
  Cluster cluster({});
  std::vector<std::thread> threads;
  for (int neighbour = 0; neighbour < 3; ++neighbour) {
    threads.emplace_back([&, neighbour] {
      for (int turn = 0; turn < 10; ++turn) {
        DrivenSession session(*cluster.route, cluster.clock, {}, "owner");
        const std::vector<Token> prompt = SomeTokens(static_cast<uint64_t>(neighbour * 100 + turn), 30);
        if (neighbour == 0) {
          Ask(session, prompt, 30, Lively(1), CancelAt(1 + turn));
        } else {
          EXPECT_EQ(Ask(session, prompt, 30, Lively(1)).tokens, FakeAnswer({}, prompt, 30, Lively(1)));
        }
        session.Release(seconds(30));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(cluster.Leftovers(), "");
}

}  // namespace
}  // namespace meshnet
