#include "session/journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace meshnet {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<Token> Tokens(std::initializer_list<Token> tokens) { return tokens; }

TEST(JournalTest, RewriteKeepsWhatStagesHoldOfTheCommonPrefix) {
  Journal journal("salt");
  journal.Rewrite(Tokens({1, 2, 3, 4, 5}));
  journal.ForgetStages(3);
  journal.Commit(0, PastLen(5));
  journal.Commit(1, PastLen(4));
  journal.Commit(2, PastLen(2));
  EXPECT_EQ(journal.agreed(), PastLen(2));

  journal.Rewrite(Tokens({1, 2, 3, 9}));
  EXPECT_THAT(journal.tokens(), ElementsAre(1, 2, 3, 9));
  EXPECT_THAT(journal.stages(), ElementsAre(StageHeld{PastLen(5), PastLen(3)}, StageHeld{PastLen(4), PastLen(3)}, StageHeld{PastLen(2), PastLen(2)}));
  EXPECT_EQ(journal.agreed(), PastLen(2));
}

TEST(JournalTest, TheOldTailIsNotAgreedUponAgainWhenItComesBack) {
  Journal journal("");
  journal.Rewrite(Tokens({1, 2, 3}));
  journal.ForgetStages(1);
  journal.Commit(0, PastLen(3));
  journal.Rewrite(Tokens({1, 7}));
  journal.Rewrite(Tokens({1, 2, 3}));
  EXPECT_EQ(journal.agreed(), PastLen(1));  // it may be there, but nobody promised
}

TEST(JournalTest, DigestsAreThoseOfThePrefixInAnyOrderOfCalls) {
  const std::vector<Token> tokens = {5, 6, 7, 8, 9};
  Journal journal("owner");
  journal.Append(tokens);
  for (uint32_t n : {0u, 3u, 3u, 5u, 1u, 4u, 0u, 5u}) {
    EXPECT_EQ(journal.DigestAt(PastLen(n)), DigestOfPrefix("owner", std::span(tokens).first(n))) << n;
  }
  journal.Truncate(PastLen(2));
  journal.Append(Tokens({1}));
  EXPECT_EQ(journal.DigestAt(PastLen(3)), DigestOfPrefix("owner", Tokens({5, 6, 1})));
  EXPECT_NE(journal.DigestAt(PastLen(3)), DigestOfPrefix("other", Tokens({5, 6, 1})));
}

TEST(JournalTest, BoundariesEndWithTheTokensTheyCut) {
  Journal journal("");
  journal.Append(std::vector<Token>(10, 1));
  journal.MarkBoundary(PastLen(8));
  journal.MarkBoundary(PastLen(4));
  journal.MarkBoundary(PastLen(8));
  EXPECT_THAT(journal.boundaries(), ElementsAre(PastLen(4), PastLen(8)));
  journal.Truncate(PastLen(4));
  EXPECT_THAT(journal.boundaries(), ElementsAre(PastLen(4)));
  journal.Truncate(PastLen(3));
  EXPECT_THAT(journal.boundaries(), IsEmpty());
}

TEST(JournalTest, ForgottenStagesHoldNothing) {
  Journal journal("");
  EXPECT_EQ(journal.agreed(), PastLen(0));
  journal.Append(Tokens({1, 2}));
  journal.ForgetStages(2);
  journal.Commit(0, PastLen(2));
  EXPECT_EQ(journal.agreed(), PastLen(0));
  journal.Correct(1, {PastLen(4), PastLen(1)});
  EXPECT_EQ(journal.agreed(), PastLen(1));
}

}  // namespace
}  // namespace meshnet
