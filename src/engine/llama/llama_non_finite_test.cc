// A value that overflows must end its own session and reach no other, now or later (docs/engine.md, L13).
#include <fcntl.h>
#include <unistd.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "engine/llama/test_engine.h"
#include "gguf/model_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace meshnet {
namespace {

using testing::HasSubstr;

constexpr Token kOverflowing = 200;

// f32 rows of one tensor, changed in the file.
void ChangeRows(const std::string& path, const std::string& name, const std::function<void(uint64_t row, std::vector<float>& values)>& change) {
  Result<gguf::ModelFile> file = gguf::ModelFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  const gguf::TensorInfo* tensor = file->FindTensor(name);
  ASSERT_TRUE(tensor != nullptr) << name;
  const int fd = open(path.c_str(), O_RDWR);
  std::vector<float> values(tensor->dims[0]);
  const size_t bytes = values.size() * sizeof(float);
  for (uint64_t row = 0; row < tensor->dims[1]; ++row) {
    const auto offset = static_cast<off_t>(tensor->offset + row * bytes);
    ASSERT_EQ(pread(fd, values.data(), bytes, offset), static_cast<ssize_t>(bytes));
    change(row, values);
    ASSERT_EQ(pwrite(fd, values.data(), bytes, offset), static_cast<ssize_t>(bytes));
  }
  close(fd);
}

struct Layout {
  std::string name;
  uint32_t budget_tokens;
  bool flash_attention;

  bool one_pool() const { return budget_tokens < 1024; }
};

// Layer 0's keys are huge along the first embedding element, which only one token has: its key overflows f16.
class NonFiniteTest : public testing::TestWithParam<Layout> {
 protected:
  NonFiniteTest() : engine_(TestEngine::FileOnly{}, {}) {
    ChangeRows(engine_.path(), "token_embd.weight", [](uint64_t row, std::vector<float>& values) { values[0] = row == kOverflowing ? 4.0f : 0.0f; });
    ChangeRows(engine_.path(), "blk.0.attn_k.weight", [](uint64_t, std::vector<float>& values) { values[0] = 1e6f; });
    EngineOptions options = TestEngine::SmallOptions();
    options.budget_tokens = GetParam().budget_tokens;
    options.flash_attention = GetParam().flash_attention;
    engine_.Open(options);
  }

  std::vector<float> Expected(const std::vector<Token>& prompt, Token next) {
    engine_->Remove(SequenceId(3));
    EXPECT_EQ(engine_.Feed(3, prompt).fate, EngineFate::kDone);
    std::vector<float> logits = ValuesOf(engine_.Feed(3, {next}));
    engine_->Remove(SequenceId(3));
    return logits;
  }

  TestEngine engine_;
};

TEST_P(NonFiniteTest, EndsOnlyItsOwnSession) {
  const std::vector<Token> prompt = {1, 2, 3, 4, 5, 6, 7};
  const std::vector<float> expected = Expected(prompt, 8);
  ASSERT_EQ(engine_.Feed(0, prompt).fate, EngineFate::kDone);
  ASSERT_EQ(engine_.Feed(1, {9, 9, 9}).fate, EngineFate::kDone);

  const std::vector<EngineOutcome> outcomes = engine_.FeedTogether({{0, 8}, {1, kOverflowing}});
  EXPECT_EQ(outcomes[0].fate, EngineFate::kDone) << outcomes[0].cause;
  EXPECT_EQ(outcomes[1].fate, EngineFate::kLost);
  EXPECT_THAT(outcomes[1].cause, HasSubstr("[3,4) came out not finite"));
  EXPECT_EQ(ValuesOf(outcomes[0]).size(), expected.size());
  for (float value : ValuesOf(outcomes[0])) ASSERT_TRUE(std::isfinite(value));

  // Before it is removed, and while it holds its cells, it stays lost and its neighbour goes on.
  EXPECT_EQ(engine_.Feed(1, {5}).fate, EngineFate::kLost);
  EXPECT_EQ(engine_.Feed(0, {9}).fate, EngineFate::kDone);
}

TEST_P(NonFiniteTest, LeavesNothingForTheNextOwner) {
  // Long enough for the tiled attention of llama.cpp, which multiplies masked cells by zero where the short one skips them.
  std::vector<Token> prompt(64);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<Token>(i);
  // The neighbour first: in one pool it decides which cells the others get, and with them the order of additions.
  ASSERT_EQ(engine_.Feed(2, {7, 7, 7}).fate, EngineFate::kDone);
  const std::vector<float> expected = Expected(prompt, 8);
  for (int round = 0; round < 3; ++round) {
    // In the middle of a chunk: the row that is looked at is a later one.
    EXPECT_EQ(engine_.Feed(1, {9, 9, kOverflowing, 9, 9}, nullptr, false).fate, EngineFate::kLost);
    engine_->Remove(SequenceId(1));
    EXPECT_EQ(engine_.past_len(1), PastLen(0));
    ASSERT_EQ(engine_.Feed(1, prompt).fate, EngineFate::kDone);
    // In one pool the cells stand elsewhere than before, so sums are taken in another order.
    EXPECT_THAT(ValuesOf(engine_.Feed(1, {8})), testing::Pointwise(testing::FloatNear(GetParam().one_pool() ? 1e-3f : 0.0f), expected)) << round;
    engine_->Remove(SequenceId(1));
  }
  EXPECT_EQ(engine_.Feed(2, {7}).fate, EngineFate::kDone);
}

INSTANTIATE_TEST_SUITE_P(Layouts, NonFiniteTest,
                         testing::Values(Layout{"Partitioned", 1024, true}, Layout{"OnePool", 512, true},
                                         Layout{"PartitionedPlainAttention", 1024, false}, Layout{"OnePoolPlainAttention", 512, false}),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace meshnet
