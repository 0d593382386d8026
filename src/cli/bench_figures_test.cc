#include "cli/bench_figures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace meshnet::cli {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;

TEST(BenchFiguresTest, Quantiles) {
  EXPECT_EQ(Quantile({}, 0.5), 0);
  EXPECT_EQ(Quantile({3, 1, 2}, 0.5), 2);
  EXPECT_EQ(Quantile({4, 1, 3, 2}, 0.5), 2.5);
  EXPECT_EQ(Quantile({5}, 0.99), 5);
  std::vector<double> hundred;
  for (int i = 100; i >= 1; --i) hundred.push_back(i);
  EXPECT_EQ(Quantile(hundred, 0.99), 99);
  EXPECT_EQ(Quantile(hundred, 1.0), 100);
}

TEST(BenchFiguresTest, TakesABurstApart) {
  BurstTimes burst;
  AddSession({1.0, 1.5, 2.5}, &burst);
  AddSession({2.0, 4.0}, &burst);
  AddSession({}, &burst);
  EXPECT_EQ(burst.wall_seconds, 4.0);
  EXPECT_THAT(burst.first_token_seconds, ElementsAre(1.0, 2.0));
  EXPECT_THAT(burst.gap_seconds, ElementsAre(0.5, 1.0, 2.0));
  EXPECT_THAT(burst.generation_seconds, ElementsAre(1.5, 2.0));
}

TEST(BenchFiguresTest, OneSessionHasPromptAndGenerationApart) {
  BurstTimes burst;
  AddSession({2.0, 2.1, 2.2, 2.3, 2.4}, &burst);
  std::vector<BenchRow> rows = MakeRows("meshnet", 2, {1, 100, 5, 0}, {burst, burst, burst});
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].test, "pp100");
  EXPECT_THAT(rows[0].tokens_per_second, DoubleNear(50, 1e-9));
  EXPECT_EQ(rows[1].test, "tg5");
  EXPECT_THAT(rows[1].tokens_per_second, DoubleNear(10, 1e-9));
  EXPECT_EQ(rows[2].test, "pp100+tg5");
  EXPECT_THAT(rows[2].tokens_per_second, DoubleNear(105 / 2.4, 1e-9));
}

TEST(BenchFiguresTest, ManySessionsCountAllTokensOverTheWholeTime) {
  BurstTimes burst;
  AddSession({1.0, 10.0}, &burst);
  AddSession({5.0, 9.0}, &burst);
  std::vector<BenchRow> rows = MakeRows("meshnet", 2, {2, 98, 2, 0}, {burst});
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_THAT(rows[0].tokens_per_second, DoubleNear(20, 1e-9));
}

TEST(BenchFiguresTest, RatiosPairEqualTests) {
  std::vector<BenchRow> rows = {{"meshnet", "pp9", 2, 1, 30, 0, 0, 0}, {"single", "pp9", 2, 1, 40, 0, 0, 0}, {"meshnet", "pp9+tg1", 2, 16, 10, 0, 0, 0},
                                {"single", "pp9+tg1", 2, 16, 10, 0, 0, 0}, {"single", "pp9+tg1", 2, 64, 10, 0, 0, 0}};
  std::vector<BenchRatio> ratios = MakeRatios(rows, "meshnet", "single");
  ASSERT_EQ(ratios.size(), 2u);
  EXPECT_EQ(ratios[0].name, "pp9");
  EXPECT_EQ(ratios[0].ratio, 0.75);
  EXPECT_EQ(ratios[1].name, "pp9+tg1 x16");
  EXPECT_EQ(ratios[1].ratio, 1);
}

}  // namespace
}  // namespace meshnet::cli
