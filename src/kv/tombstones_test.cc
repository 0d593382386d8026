#include "kv/tombstones.h"

#include <gtest/gtest.h>

namespace meshnet::kv {
namespace {

SessionId Id(uint8_t number) {
  SessionId id;
  id.bytes.fill(number);
  return id;
}

Time At(int64_t seconds) { return Time(std::chrono::seconds(seconds)); }

TEST(TombstonesTest, RemembersFenceAndReasonForItsTime) {
  Tombstones tombstones(4, std::chrono::seconds(10));
  tombstones.Put(Id(1), {Epoch(5), SessionEnd::kEvictedLru, StepSeq(7), At(100)});
  ASSERT_TRUE(tombstones.Find(Id(1)));
  EXPECT_EQ(tombstones.Find(Id(1))->fence, Epoch(5));
  EXPECT_EQ(tombstones.next_expiry(), At(110));
  tombstones.Expire(At(109));
  EXPECT_TRUE(tombstones.Find(Id(1)));
  tombstones.Expire(At(110));
  EXPECT_FALSE(tombstones.Find(Id(1)));
  EXPECT_FALSE(tombstones.next_expiry());
}

TEST(TombstonesTest, ForgetsTheOldestWhenFullAndKeepsOneASession) {
  Tombstones tombstones(2, std::chrono::seconds(10));
  tombstones.Put(Id(1), {Epoch(1), SessionEnd::kLost, {}, At(1)});
  tombstones.Put(Id(2), {Epoch(1), SessionEnd::kLost, {}, At(2)});
  tombstones.Put(Id(1), {Epoch(2), SessionEnd::kReleased, {}, At(3)});
  EXPECT_TRUE(tombstones.Find(Id(2))) << "replacing one needs no room";
  tombstones.Put(Id(3), {Epoch(1), SessionEnd::kLost, {}, At(3)});
  EXPECT_FALSE(tombstones.Find(Id(2)));
  EXPECT_EQ(tombstones.Find(Id(1))->fence, Epoch(2));
  EXPECT_TRUE(tombstones.within_bounds());
}

TEST(TombstonesTest, EachEndHasItsDetail) {
  EXPECT_EQ(DetailOf(SessionEnd::kReleased), Detail::kNoSession);
  EXPECT_EQ(DetailOf(SessionEnd::kEvictedLru), Detail::kEvictedLru);
  EXPECT_EQ(DetailOf(SessionEnd::kEvictedTtl), Detail::kEvictedTtl);
  EXPECT_EQ(DetailOf(SessionEnd::kLost), Detail::kLost);
  EXPECT_EQ(DetailOf(SessionEnd::kDrained), Detail::kDrained);
}

}  // namespace
}  // namespace meshnet::kv
