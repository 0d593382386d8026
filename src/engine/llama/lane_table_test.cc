#include "engine/llama/lane_table.h"

#include <random>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace meshnet {
namespace {

using testing::SizeIs;

std::vector<SequenceId> Ids(const std::vector<int32_t>& numbers) {
  std::vector<SequenceId> ids;
  for (int32_t number : numbers) ids.emplace_back(number);
  return ids;
}

size_t Runs(const LaneTable& table, const std::vector<SequenceId>& sequences) {
  std::set<int32_t> lanes;
  for (SequenceId sequence : sequences) lanes.insert(table.lane(sequence));
  size_t runs = 0;
  for (int32_t lane : lanes) runs += !lanes.contains(lane - 1);
  return runs;
}

size_t Exchange(LaneTable& table, const std::vector<SequenceId>& sequences, uint64_t pass_cost, uint64_t price) {
  const auto exchanges = table.Plan(sequences, pass_cost, [&](SequenceId, SequenceId) { return price; });
  for (const auto& [a, b] : exchanges) table.Exchanged(a, b);
  return exchanges.size();
}

TEST(LaneTableTest, NeighboursStayWhereTheyAre) {
  LaneTable table(8);
  EXPECT_EQ(Exchange(table, Ids({2, 3, 4}), 1'000'000, 1), 0u);
  EXPECT_EQ(Exchange(table, Ids({7}), 1'000'000, 1), 0u);
  EXPECT_EQ(table.lane(SequenceId(3)), 3);
}

TEST(LaneTableTest, FewestAreMoved) {
  LaneTable table(16);
  EXPECT_EQ(Exchange(table, Ids({0, 8, 9, 11}), 100, 1), 1u);
  EXPECT_EQ(Runs(table, Ids({0, 8, 9, 11})), 1u);
  EXPECT_EQ(table.lane(SequenceId(8)), 8);
}

TEST(LaneTableTest, WaitsUntilThePassesHaveCostAsMuch) {
  LaneTable table(8);
  const std::vector<SequenceId> gaps = Ids({0, 2, 4});  // two passes too many, one exchange
  for (int i = 0; i < 4; ++i) EXPECT_EQ(Exchange(table, gaps, 10, 100), 0u) << i;
  EXPECT_EQ(Exchange(table, gaps, 10, 100), 1u);
  EXPECT_EQ(Exchange(table, gaps, 10, 50), 0u);
  EXPECT_EQ(Runs(table, gaps), 1u);
}

TEST(LaneTableTest, TwoCohortsEndBesideEachOther) {
  LaneTable table(64);
  std::vector<SequenceId> cohorts[2];
  for (int32_t i = 0; i < 64; ++i) cohorts[i % 2].emplace_back(i);
  size_t moved = 0;
  for (int round = 0; round < 10; ++round) moved += Exchange(table, cohorts[round % 2], 1000, 1);
  EXPECT_EQ(Runs(table, cohorts[0]), 1u);
  EXPECT_EQ(Runs(table, cohorts[1]), 1u);
  EXPECT_LE(moved, 32u);
}

TEST(LaneTableTest, EachSequenceKeepsALaneOfItsOwn) {
  std::mt19937 random(7);
  LaneTable table(20);
  for (int round = 0; round < 2000; ++round) {
    std::vector<SequenceId> some;
    for (int32_t i = 0; i < 20; ++i) {
      if (random() % 3 == 0) some.emplace_back(i);
    }
    if (some.empty()) continue;
    const bool moved = Exchange(table, some, 10, random() % 100) > 0;
    if (moved) {
      EXPECT_EQ(Runs(table, some), 1u);
    }
    std::set<int32_t> lanes;
    for (int32_t i = 0; i < 20; ++i) lanes.insert(table.lane(SequenceId(i)));
    ASSERT_THAT(lanes, SizeIs(20));
    ASSERT_EQ(*lanes.rbegin(), 19);
  }
}

}  // namespace
}  // namespace meshnet
