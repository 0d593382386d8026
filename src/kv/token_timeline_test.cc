#include "kv/token_timeline.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace meshnet::kv {
namespace {

std::vector<Token> Tokens(size_t count, Token first = 0) {
  std::vector<Token> tokens;
  for (size_t i = 0; i < count; ++i) tokens.push_back(static_cast<Token>(first + static_cast<Token>(i % 900)));
  return tokens;
}

TEST(TokenTimelineTest, DigestsAreThoseOfThePrefixAtEveryLength) {
  const std::vector<Token> tokens = Tokens(600);
  TokenTimeline timeline("salt");
  const PrefixDigest digest = timeline.Queue(PastLen(0), tokens);
  timeline.Commit(600, digest);
  for (uint32_t length : {0u, 1u, 255u, 256u, 257u, 511u, 512u, 513u, 599u, 600u}) {
    EXPECT_EQ(timeline.DigestAt(PastLen(length)), DigestOfPrefix("salt", std::span(tokens).first(length))) << length;
  }
}

TEST(TokenTimelineTest, AQueuedCutLeavesTheCommittedTokensUntilItIsCommitted) {
  const std::vector<Token> before = Tokens(300), after = Tokens(20, 50);
  TokenTimeline timeline("");
  timeline.Commit(300, timeline.Queue(PastLen(0), before));
  const PrefixDigest cut = timeline.Queue(PastLen(100), after);
  EXPECT_EQ(timeline.past_len(), PastLen(300));
  EXPECT_EQ(timeline.projected_len(), PastLen(120));
  EXPECT_EQ(timeline.digest(), DigestOfPrefix("", before));
  EXPECT_EQ(timeline.DigestAt(PastLen(270)), DigestOfPrefix("", std::span(before).first(270)));
  timeline.DropQueued(20);
  EXPECT_EQ(timeline.projected_len(), PastLen(300));
  EXPECT_EQ(timeline.Queue(PastLen(300), after), [&] {
    std::vector<Token> all = before;
    all.insert(all.end(), after.begin(), after.end());
    return DigestOfPrefix("", all);
  }());
  timeline.DropQueued(20);
  timeline.Commit(20, timeline.Queue(PastLen(100), after));
  EXPECT_EQ(timeline.digest(), cut);
  EXPECT_EQ(timeline.past_len(), PastLen(120));
}

// Random histories against a plain vector: every digest, at every boundary, whatever was queued, dropped, committed and cut before.
TEST(TokenTimelineTest, AgreesWithAPlainVectorOverRandomHistories) {
  std::mt19937 random(7);
  auto below = [&](uint32_t bound) { return static_cast<uint32_t>(random() % bound); };
  for (int history = 0; history < 30; ++history) {
    TokenTimeline timeline("x");
    std::vector<Token> committed;
    struct Part {
      uint32_t start;
      std::vector<Token> tokens;
      PrefixDigest digest;
    };
    std::vector<Part> queue;
    for (int i = 0; i < 60; ++i) {
      const uint32_t choice = below(10);
      if (choice < 5) {
        const bool cut = queue.empty() && !committed.empty() && below(4) == 0;
        const uint32_t start = cut ? below(static_cast<uint32_t>(committed.size()) + 1) : timeline.projected_len().value;
        Part part{start, Tokens(1 + below(300), static_cast<Token>(below(50))), {}};
        part.digest = timeline.Queue(PastLen(start), part.tokens);
        queue.push_back(std::move(part));
      } else if (choice < 8 && !queue.empty()) {
        timeline.Commit(static_cast<uint32_t>(queue[0].tokens.size()), queue[0].digest);
        committed.resize(queue[0].start);
        committed.insert(committed.end(), queue[0].tokens.begin(), queue[0].tokens.end());
        queue.erase(queue.begin());
      } else if (choice == 8 && !queue.empty()) {
        timeline.DropQueued(static_cast<uint32_t>(queue.back().tokens.size()));
        queue.pop_back();
      } else if (queue.empty() && !committed.empty()) {
        committed.resize(below(static_cast<uint32_t>(committed.size()) + 1));
        timeline.Truncate(PastLen(static_cast<uint32_t>(committed.size())));
      }
      ASSERT_TRUE(std::ranges::equal(timeline.committed(), committed));
      ASSERT_EQ(timeline.digest(), DigestOfPrefix("x", committed));
      const uint32_t length = below(static_cast<uint32_t>(committed.size()) + 1);
      ASSERT_EQ(timeline.DigestAt(PastLen(length)), DigestOfPrefix("x", std::span(committed).first(length)));
      std::vector<Token> line = committed;
      for (const Part& part : queue) {
        line.resize(part.start);
        line.insert(line.end(), part.tokens.begin(), part.tokens.end());
        ASSERT_EQ(part.digest, DigestOfPrefix("x", line));
      }
      ASSERT_EQ(timeline.projected_len().value, line.size());
    }
  }
}

}  // namespace
}  // namespace meshnet::kv
