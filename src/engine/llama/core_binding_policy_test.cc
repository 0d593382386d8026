#include "engine/llama/core_binding_policy.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace meshnet {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::IsEmpty;

TEST(CoreBindingPolicyTest, ThreadsHaveAPlaceWhereThereIsNoChoice) {
  const std::vector<std::vector<uint32_t>> cores = {{0, 4}, {1, 5}, {2, 6}};
  EXPECT_EQ(PlacesOf(3, cores), cores);
  EXPECT_THAT(PlacesOf(6, cores), ElementsAre(ElementsAre(0), ElementsAre(4), ElementsAre(1), ElementsAre(5), ElementsAre(2), ElementsAre(6)));
  for (uint32_t threads : {0u, 1u, 2u, 4u, 7u}) EXPECT_THAT(PlacesOf(threads, cores), IsEmpty()) << threads;
  EXPECT_THAT(PlacesOf(1, {{0}}), IsEmpty());  // nobody to wait for
}

class CoreBindingTest : public testing::Test {
 protected:
  // Calls of half a second; a thread waits for its core for `share` of the time.
  void Calls(int count, double share) {
    for (int i = 0; i < count; ++i) {
      now_ += milliseconds(500);
      if (!policy_.bound()) waited_ = Duration::zero();
      waited_ += std::chrono::duration_cast<Duration>(milliseconds(500) * share);
      if (!policy_.Called(now_, milliseconds(500))) continue;
      policy_.Waited(now_, waited_);
      waited_ = Duration::zero();
    }
  }

  CoreBindingPolicy policy_;
  Duration waited_{0};
  Time now_{seconds(100)};
};

TEST_F(CoreBindingTest, BoundWhileTheCoresAreTheirs) {
  EXPECT_TRUE(policy_.bound());
  Calls(100, 0.02);
  EXPECT_TRUE(policy_.bound());
}

TEST_F(CoreBindingTest, LetGoWhenAnotherWantsACore) {
  Calls(1, 0.5);
  EXPECT_TRUE(policy_.bound());  // one call says little
  Calls(1, 0.5);
  EXPECT_FALSE(policy_.bound());
}

TEST_F(CoreBindingTest, TriedAgainAfterAPauseThatGrows) {
  Calls(2, 0.5);
  Calls(19, 0.02);
  EXPECT_FALSE(policy_.bound());
  Calls(1, 0.02);
  EXPECT_TRUE(policy_.bound());
  Calls(2, 0.5);
  Calls(39, 0.02);
  EXPECT_FALSE(policy_.bound());
  Calls(1, 0.02);
  EXPECT_TRUE(policy_.bound());
  Calls(2, 0.02);  // good again: the next pause is short
  Calls(2, 0.5);
  Calls(20, 0.5);
  EXPECT_TRUE(policy_.bound());
  for (int i = 0; i < 20; ++i) {
    while (!policy_.bound()) Calls(1, 0.5);
    Calls(2, 0.5);
  }
  Calls(1199, 0.5);
  EXPECT_FALSE(policy_.bound());
  Calls(1, 0.5);  // ten minutes: never longer
  EXPECT_TRUE(policy_.bound());
}

}  // namespace
}  // namespace meshnet
