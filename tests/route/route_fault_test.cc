// Single faults at chosen moments: a stage dies, is evicted, drains, its engine fails, another driver takes over. The text never changes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "cluster.h"

namespace meshnet {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

class RouteFaultTest : public ::testing::Test {
 protected:
  // One answer of 40 tokens with a fault in it.
  void Run(Cluster& cluster, DrivenSession& session, Client client, uint32_t replays) {
    const Told told = Ask(session, prompt_, 40, Lively(3), std::move(client));
    EXPECT_EQ(told.tokens, FakeAnswer({}, prompt_, 40, Lively(3)));
    EXPECT_EQ(told.report().generated_tokens, 40u);
    EXPECT_EQ(told.report().replays, replays);
    session.Release(seconds(30));
    EXPECT_EQ(cluster.Leftovers(), "");
  }

  const std::vector<Token> prompt_ = SomeTokens(11, 90);
};

TEST_F(RouteFaultTest, AStageDiesBetweenTokens) {
  for (TruncationClass truncation_class : {TruncationClass::kFull, TruncationClass::kWindow, TruncationClass::kWhole}) {
    for (size_t stage = 0; stage < 3; ++stage) {
      for (size_t at : {1u, 2u, 37u}) {
        SCOPED_TRACE("stage " + std::to_string(stage) + " at token " + std::to_string(at));
        ClusterOptions options;
        options.truncation_class = truncation_class;
        options.window_tokens = 8;
        Cluster cluster(options);
        DrivenSession session(*cluster.route, cluster.clock, {}, "owner");
        Client client;
        client.on_token = [&](size_t count) {
          if (count == at) cluster.Restart(stage);
        };
        Run(cluster, session, std::move(client), 1);
        EXPECT_EQ(session.epoch(), Epoch(2));
      }
    }
  }
}

TEST_F(RouteFaultTest, AStageDiesInThePrefillAndIsAwayForAWhile) {
  for (size_t stage = 0; stage < 3; ++stage) {
    for (uint64_t at : {1u, 3u, 6u}) {
      SCOPED_TRACE("stage " + std::to_string(stage) + " at its chunk " + std::to_string(at));
      Cluster cluster({});
      DrivenSession session(*cluster.route, cluster.clock, {}, "owner");
      cluster.link(stage).OnForward([&](uint64_t number) {
        if (number == at) cluster.KillFor(stage, 2);
      });
      Run(cluster, session, {}, 1);
    }
  }
}

TEST_F(RouteFaultTest, AllStagesDieOneAfterTheOther) {
  Cluster cluster({});
  DrivenSession session(*cluster.route, cluster.clock, {}, "owner");
  Client client;
  client.on_token = [&](size_t count) {
    if (count % 10 == 0 && count < 40) cluster.Restart(count / 10 - 1);
  };
  Run(cluster, session, std::move(client), 3);
}

TEST_F(RouteFaultTest, ADeadStageThatStaysDeadEndsTheAnswerAndTheNextOneWorks) {
  Cluster cluster({});
  DriverOptions driver;
  driver.recovery_limit = std::chrono::milliseconds(200);
  DrivenSession session(*cluster.route, cluster.clock, driver, "owner");
  Client client;
  client.on_token = [&](size_t count) {
    if (count == 5) cluster.Kill(1);
  };
  const Told told = Ask(session, prompt_, 40, Lively(3), std::move(client));
  EXPECT_EQ(told.tokens.size(), 5u);
  const AnswerFailure& failure = std::get<AnswerFailure>(told.result);
  EXPECT_EQ(failure.kind, AnswerFailure::Kind::kRouteDown);
  EXPECT_THAT(failure.message, HasSubstr("[2,4)"));
  EXPECT_NE(cluster.route->state(), RouteState::kServing);
  EXPECT_THAT(cluster.route->trouble(), HasSubstr("shard1"));
  cluster.Start(1);
  ASSERT_TRUE(cluster.route->WaitForRepair(1, cluster.clock.Now() + seconds(60), nullptr).ok());
  Run(cluster, session, {}, 0);
}

TEST_F(RouteFaultTest, EngineFailuresAreTriedAgain) {
  for (size_t stage = 0; stage < 3; ++stage) {
    for (FakeFault::Kind kind : {FakeFault::Kind::kRolledBack, FakeFault::Kind::kLost, FakeFault::Kind::kNonFinite}) {
      SCOPED_TRACE("stage " + std::to_string(stage) + " fault " + std::to_string(static_cast<int>(kind)));
      Cluster cluster({});
      DrivenSession session(*cluster.route, cluster.clock, {}, "owner");
      cluster.engine(stage).Inject({kind, std::nullopt});  // in the first chunk
      Client client;
      client.on_token = [&](size_t count) {
        if (count == 7) cluster.engine(stage).Inject({kind, std::nullopt});
      };
      Run(cluster, session, std::move(client), kind == FakeFault::Kind::kRolledBack ? 0 : 2);
    }
  }
}

TEST_F(RouteFaultTest, ATruncationThatIsNotProvenIsAReplay) {
  Cluster cluster({});
  DrivenSession session(*cluster.route, cluster.clock, {}, "owner");
  Ask(session, prompt_, 5, Lively(1));
  cluster.engine(1).Inject({FakeFault::Kind::kTruncateFails, std::nullopt});
  Run(cluster, session, {}, 1);
}

TEST_F(RouteFaultTest, AStageThatDrainsIsWaitedFor) {
  Cluster cluster({});
  DrivenSession session(*cluster.route, cluster.clock, {}, "owner");
  Client client;
  client.on_token = [&](size_t count) {
    if (count != 9) return;
    // The drain ends its sessions, then the process is replaced.
    cluster.host(1).BeginDrain(false);
    cluster.host(1).Inspect([](ShardCore& core) { core.FinishDrain(); });
    cluster.link(1).OnForward([&](uint64_t) {
      cluster.link(1).OnForward(nullptr);
      cluster.Start(1);
    });
  };
  Run(cluster, session, std::move(client), 1);
}

TEST_F(RouteFaultTest, AnotherDriverThatTookOverIsLeftAlone) {
  for (size_t stage = 0; stage < 3; ++stage) {
    SCOPED_TRACE("stage " + std::to_string(stage));
    Cluster cluster({});
    DrivenSession session(*cluster.route, cluster.clock, {}, "owner");
    Client client;
    client.on_token = [&](size_t count) {
      if (count != 6) return;
      auto view = cluster.route->view();
      OpenRequest request;
      request.key = {session.id(), Epoch(5)};
      request.model_root = view->stages[stage].description.model_root;
      request.range = view->stages[stage].description.range;
      std::promise<bool> opened;
      cluster.host(stage).Open(request, [&](Reply<OpenReply> reply) { opened.set_value(std::holds_alternative<OpenReply>(reply)); });
      EXPECT_TRUE(opened.get_future().get());
    };
    const Told told = Ask(session, prompt_, 40, Lively(3), std::move(client));
    EXPECT_EQ(told.tokens.size(), 6u);
    EXPECT_EQ(std::get<AnswerFailure>(told.result).kind, AnswerFailure::Kind::kInternal);
    EXPECT_THAT(std::get<AnswerFailure>(told.result).message, HasSubstr("epoch-stale"));
    EXPECT_TRUE(session.ended());
    session.Release(seconds(30));
    EXPECT_NE(cluster.Leftovers(), "") << "the newer route's session is not ours to release";
  }
}

// Without a journal mark, the idle session of an owner is evicted by another one and comes back by replay.
TEST_F(RouteFaultTest, AnIdleSessionThatWasEvictedIsBuiltAgain) {
  ClusterOptions options;
  options.sessions_max = 1;
  options.budget_tokens = options.context_tokens;
  Cluster cluster(options);
  DrivenSession first(*cluster.route, cluster.clock, {}, "a"), second(*cluster.route, cluster.clock, {}, "b");
  for (int turn = 0; turn < 3; ++turn) {
    for (DrivenSession* session : {&first, &second}) {
      const Told told = Ask(*session, prompt_, 10, Lively(3));
      EXPECT_EQ(told.tokens, FakeAnswer({}, prompt_, 10, Lively(3)));
      EXPECT_EQ(told.report().cached_tokens, 0u);
      EXPECT_EQ(told.report().replays, turn == 0 ? 0u : 1u);
    }
  }
  first.Release(seconds(30));
  second.Release(seconds(30));
  EXPECT_EQ(cluster.Leftovers(), "");
}

}  // namespace
}  // namespace meshnet
