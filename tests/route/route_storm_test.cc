// Many faults, many sessions, many seeds: every client still gets exactly the undisturbed text, and nothing is left behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <random>

#include "cluster.h"
#include "session/session_pool.h"

namespace meshnet {
namespace {

using std::chrono::seconds;

FaultRates SomeFaults(uint32_t thousandths) {
  return {.drop = thousandths, .lose_reply = thousandths, .repeat = thousandths, .delay = 2 * thousandths};
}

TEST(RouteStormTest, ALossyRouteTellsTheSameText) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    ClusterOptions options;
    options.seed = seed;
    options.rates = SomeFaults(20);
    options.cuts = seed % 3 == 0 ? std::vector<uint32_t>{3} : std::vector<uint32_t>{2, 4};
    options.truncation_class = static_cast<TruncationClass>(seed % 3);
    options.window_tokens = 8;
    Cluster cluster(options);
    DrivenSession session(*cluster.route, cluster.clock, {}, "owner");
    std::vector<Token> prompt = SomeTokens(seed, 20 + seed % 50);
    uint64_t faults = 0;
    for (uint32_t turn = 0; turn < 3; ++turn) {
      const Told told = Ask(session, prompt, 15, Lively(turn));
      EXPECT_EQ(told.tokens, FakeAnswer(options.model, prompt, 15, Lively(turn)));
      EXPECT_EQ(told.report().generated_tokens, 15u);
      prompt.insert(prompt.end(), told.tokens.begin(), told.tokens.begin() + 10);
    }
    session.Release(seconds(30));
    EXPECT_EQ(cluster.Leftovers(), "");
    for (size_t stage = 0; stage < cluster.stage_count(); ++stage) faults += cluster.link(stage).faults();
    EXPECT_GT(faults, 0u);
  }
}

TEST(RouteStormTest, StagesThatRestartAtRandomUnderManySessions) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    ClusterOptions options;
    options.seed = seed;
    options.rates = SomeFaults(5);
    options.sessions_max = 4;
    Cluster cluster(options);
    std::atomic<uint32_t> replays{0};
    std::vector<std::thread> clients;
    for (uint64_t number = 0; number < 4; ++number) {
      clients.emplace_back([&, number] {
        std::mt19937_64 random(seed * 100 + number);
        DrivenSession session(*cluster.route, cluster.clock, {}, "owner");
        for (uint32_t turn = 0; turn < 4; ++turn) {
          const std::vector<Token> prompt = SomeTokens(random(), 10 + random() % 60);
          const size_t strike = random() % 60, stage = random() % 3;
          Client client;
          // Only one client strikes, so that processes are replaced one at a time.
          client.on_token = [&](size_t count) {
            if (number == 0 && count == strike) cluster.KillFor(stage, 1);
          };
          const Told told = Ask(session, prompt, 40, Lively(turn), std::move(client));
          EXPECT_EQ(told.tokens, FakeAnswer(options.model, prompt, 40, Lively(turn)));
          replays += told.report().replays;
        }
        session.Release(seconds(30));
      });
    }
    for (std::thread& client : clients) client.join();
    EXPECT_EQ(cluster.Leftovers(), "");
    EXPECT_GT(replays, 0u);
  }
}

// More sessions than fit, without a pool that keeps them apart: they evict each other, and all get through in the end.
TEST(RouteStormTest, SessionsThatEvictEachOtherAllFinish) {
  ClusterOptions options;
  options.sessions_max = 2;
  options.budget_tokens = 2 * options.context_tokens;
  Cluster cluster(options);
  std::vector<std::thread> clients;
  std::atomic<uint32_t> replays{0};
  for (uint64_t number = 0; number < 5; ++number) {
    clients.emplace_back([&, number] {
      for (uint32_t turn = 0; turn < 3; ++turn) {
        const std::vector<Token> prompt = SomeTokens(number * 10 + turn, 40);
        for (;;) {
          DrivenSession session(*cluster.route, cluster.clock, {}, "owner");
          const Told told = Ask(session, prompt, 20, Lively(turn));
          session.Release(seconds(30));
          if (const auto* failure = std::get_if<AnswerFailure>(&told.result)) {
            // No room before anything was said is what a gateway queues on.
            ASSERT_EQ(failure->kind, AnswerFailure::Kind::kCapacity) << failure->message;
            ASSERT_TRUE(told.tokens.empty());
            continue;
          }
          EXPECT_EQ(told.tokens, FakeAnswer(options.model, prompt, 20, Lively(turn)));
          replays += told.report().replays;
          break;
        }
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(cluster.Leftovers(), "");
}

// K07: four chats grow to the context, one of them wants more, a fifth arrives and waits for its turn.
TEST(RouteStormTest, OnlyTheChatThatWantsMoreThanItsContextIsLimited) {
  ClusterOptions options;
  options.sessions_max = 8;
  options.context_tokens = 256;
  options.budget_tokens = 1024;
  Cluster cluster(options);
  SessionPool pool(*cluster.route, cluster.clock, {});
  EXPECT_EQ(pool.counts().answers_max, 4u);
  std::vector<std::thread> chats;
  for (uint32_t number = 0; number < 5; ++number) {
    chats.emplace_back([&, number] {
      const std::vector<Token> prompt = SomeTokens(number, 200);
      auto turn = pool.Acquire("owner" + std::to_string(number), prompt, cluster.clock.Now() + seconds(60), nullptr);
      ASSERT_TRUE(std::holds_alternative<SessionPool::Lease>(turn));
      const uint32_t wanted = number == 2 ? 100 : 56;
      const uint32_t told_max = number == 2 ? 57 : 56;
      const Told told = Ask(std::get<SessionPool::Lease>(turn).session(), prompt, wanted, Lively(number));
      EXPECT_EQ(told.report().end, AnswerEnd::kLength);
      EXPECT_EQ(told.tokens, FakeAnswer(options.model, prompt, told_max, Lively(number)));
      EXPECT_EQ(told.report().replays, 0u);
    });
  }
  for (std::thread& chat : chats) chat.join();
  pool.Stop(seconds(30));
  EXPECT_EQ(cluster.Leftovers(), "");
}

TEST(RouteStormTest, APoolUnderFaultsServesEveryOwnerItsOwnText) {
  ClusterOptions options;
  options.sessions_max = 3;
  options.budget_tokens = 3 * options.context_tokens;
  options.rates = SomeFaults(5);
  Cluster cluster(options);
  SessionPool pool(*cluster.route, cluster.clock, {});
  std::atomic<uint32_t> cached{0};
  std::vector<std::thread> owners;
  for (uint32_t number = 0; number < 6; ++number) {
    owners.emplace_back([&, number] {
      const std::string owner = "owner" + std::to_string(number / 2);
      std::vector<Token> prompt = SomeTokens(number, 30);
      for (uint32_t turn = 0; turn < 5; ++turn) {
        auto lease = pool.Acquire(owner, prompt, cluster.clock.Now() + seconds(60), nullptr);
        ASSERT_TRUE(std::holds_alternative<SessionPool::Lease>(lease));
        const Told told = Ask(std::get<SessionPool::Lease>(lease).session(), prompt, 12, Lively(turn));
        EXPECT_EQ(told.tokens, FakeAnswer(options.model, prompt, 12, Lively(turn)));
        cached += told.report().cached_tokens;
        prompt.insert(prompt.end(), told.tokens.begin(), told.tokens.end());
      }
    });
  }
  for (std::thread& owner : owners) owner.join();
  pool.Stop(seconds(30));
  EXPECT_EQ(cluster.Leftovers(), "");
}

}  // namespace
}  // namespace meshnet
