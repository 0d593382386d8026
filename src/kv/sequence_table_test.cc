#include "kv/sequence_table.h"

#include <gtest/gtest.h>

namespace meshnet::kv {
namespace {

TEST(SequenceTableTest, GivesTheLowestFreeAndCountsReservations) {
  SequenceTable table(3, 100);
  EXPECT_EQ(table.Take(40), SequenceId(0));
  EXPECT_EQ(table.Take(60), SequenceId(1));
  EXPECT_EQ(table.reserved_tokens(), 100u);
  EXPECT_EQ(table.free_count(), 1u);
  EXPECT_TRUE(table.DropOwner(SequenceId(0)));
  EXPECT_EQ(table.reserved_tokens(), 60u);
  EXPECT_EQ(table.Take(10), SequenceId(0));
}

TEST(SequenceTableTest, ANewOwnerWaitsForTheRemoval) {
  SequenceTable table(1, 100);
  table.Take(10);
  EXPECT_TRUE(table.startable(SequenceId(0)));
  EXPECT_TRUE(table.DropOwner(SequenceId(0)));
  table.Take(10);
  EXPECT_FALSE(table.startable(SequenceId(0)));
  EXPECT_FALSE(table.DropOwner(SequenceId(0))) << "the removal is owed already, and this owner never reached the engine";
  table.Take(10);
  table.ConfirmRemoved(SequenceId(0));
  EXPECT_TRUE(table.startable(SequenceId(0)));
}

TEST(SequenceTableTest, ASuccessorSharesTheSequenceOfWhatStillExecutes) {
  SequenceTable table(2, 100);
  table.Take(70);
  table.CloseOwner(SequenceId(0));
  EXPECT_EQ(table.reserved_tokens(), 70u) << "the engine has not let go";
  table.TakeOver(SequenceId(0), 90);
  EXPECT_EQ(table.reserved_tokens(), 90u) << "the larger of the two, not the sum";
  EXPECT_FALSE(table.startable(SequenceId(0)));
  EXPECT_FALSE(table.DropOwner(SequenceId(0))) << "only the end of the running step removes it";
  EXPECT_EQ(table.reserved_tokens(), 70u);
  EXPECT_FALSE(table.is_free(SequenceId(0)));
  table.DropClosing(SequenceId(0));
  EXPECT_EQ(table.reserved_tokens(), 0u);
  EXPECT_TRUE(table.removing(SequenceId(0)));
  EXPECT_TRUE(table.is_free(SequenceId(0)));
}

TEST(SequenceTableDeathTest, AnIdThatMeansEverySequenceAborts) {
  SequenceTable table(2, 10);
  EXPECT_DEATH(table.CloseOwner(SequenceId(-1)), "sequence.value >= 0");
  EXPECT_DEATH((void)table.DropOwner(SequenceId(2)), "slots_.size");
  EXPECT_DEATH(table.Take(11), "budget_tokens_");
}

}  // namespace
}  // namespace meshnet::kv
