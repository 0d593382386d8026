#include "session/chunk_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace meshnet {
namespace {

StageReach Reach(uint32_t past, uint32_t agreed, TruncationClass truncation_class) { return {{PastLen(past), PastLen(agreed)}, truncation_class}; }

TEST(ChunkPlanTest, ChoosesTheLargestStartThatEveryStageReaches) {
  constexpr auto kFull = TruncationClass::kFull;
  constexpr auto kWindow = TruncationClass::kWindow;
  constexpr auto kWhole = TruncationClass::kWhole;
  struct Row {
    const char* name;
    std::vector<StageReach> stages;
    uint32_t limit;
    uint32_t start;
  };
  const Row rows[] = {
      {"fresh", {Reach(0, 0, kFull), Reach(0, 0, kFull)}, 9, 0},
      {"all agree", {Reach(10, 10, kFull), Reach(10, 10, kFull)}, 20, 10},
      {"last token again", {Reach(10, 10, kFull)}, 9, 9},
      {"the lowest decides", {Reach(10, 8, kFull), Reach(10, 3, kFull)}, 20, 3},
      {"window is tried", {Reach(10, 4, kWindow)}, 20, 4},
      {"window fallback", {Reach(10, 4, kWindow)}, 2, 2},
      {"whole goes on", {Reach(10, 10, kWhole), Reach(10, 10, kWhole)}, 20, 10},
      {"whole is never cut", {Reach(10, 8, kWhole)}, 20, 0},
      {"whole, last token again", {Reach(10, 10, kWhole)}, 9, 0},
      {"whole stage ahead of another", {Reach(20, 20, kWhole), Reach(10, 10, kWhole)}, 30, 0},
      {"full stage ahead of a whole one", {Reach(20, 20, kFull), Reach(10, 10, kWhole)}, 30, 10},
      {"whole stage ahead of a full one", {Reach(20, 20, kWhole), Reach(10, 10, kFull)}, 30, 0},
      {"nothing wanted", {Reach(10, 10, kWhole)}, 0, 0},
  };
  for (const Row& row : rows) {
    EXPECT_EQ(ChooseStart(row.stages, PastLen(row.limit)), PastLen(row.start)) << row.name;
  }
}

TEST(ChunkPlanTest, CutsAtRowsAndAtOldBoundaries) {
  struct Row {
    const char* name;
    uint32_t start, end, rows_max;
    std::vector<PastLen> boundaries;
    std::vector<Chunk> chunks;
  };
  const Row rows[] = {
      {"nothing", 5, 5, 4, {}, {}},
      {"one", 0, 3, 4, {}, {{PastLen(0), 3}}},
      {"rows", 0, 9, 4, {}, {{PastLen(0), 4}, {PastLen(4), 4}, {PastLen(8), 1}}},
      {"same again", 0, 9, 4, {PastLen(4), PastLen(8), PastLen(9)}, {{PastLen(0), 4}, {PastLen(4), 4}, {PastLen(8), 1}}},
      {"a short old chunk stays short", 0, 12, 4, {PastLen(3), PastLen(7)}, {{PastLen(0), 3}, {PastLen(3), 4}, {PastLen(7), 4}, {PastLen(11), 1}}},
      {"a smaller limit now", 0, 8, 3, {PastLen(4)}, {{PastLen(0), 3}, {PastLen(3), 1}, {PastLen(4), 3}, {PastLen(7), 1}}},
      {"from inside a chunk", 5, 9, 4, {PastLen(4), PastLen(8)}, {{PastLen(5), 3}, {PastLen(8), 1}}},
      {"boundaries behind and beyond", 4, 6, 4, {PastLen(2), PastLen(4), PastLen(100)}, {{PastLen(4), 2}}},
  };
  for (const Row& row : rows) {
    EXPECT_EQ(PlanChunks(PastLen(row.start), PastLen(row.end), row.rows_max, row.boundaries), row.chunks) << row.name;
  }
}

}  // namespace
}  // namespace meshnet
