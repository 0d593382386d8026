// Numerics mode fast: at equal step shapes a split model gives the bits of one stock context. Every certified architecture, every legal cut.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "engine/llama/llama_shard_engine.h"
#include "gguf/architecture_table.h"
#include "gguf/cut_plan.h"
#include "gguf/model_file.h"
#include "gguf/model_shape.h"
#include "gtest/gtest.h"
#include "parity/split_route.h"
#include "tiny/test_folder.h"
#include "tiny/tiny_model.h"

namespace meshnet::parity {
namespace {

EngineOptions SmallOptions() {
  EngineOptions options;
  options.threads = 1;  // test machines are busy, and OpenMP's threads wait for each other by spinning
  options.sessions_max = 2;
  options.context_tokens = 256;
  options.budget_tokens = 512;
  options.ubatch_tokens = 64;
  return options;
}

tiny::TinyModelOptions SmallModel(const std::string& architecture) {
  tiny::TinyModelOptions options;
  options.architecture = architecture;
  options.layers = 6;
  return options;
}

// The largest difference, and whether all bits are equal (which also tells 0 from -0).
struct Difference {
  double largest = 0;
  bool bits_equal = true;
};

Difference Compare(std::span<const float> a, std::span<const float> b) {
  Difference difference;
  if (a.size() != b.size()) return {INFINITY, false};
  for (size_t i = 0; i < a.size(); ++i) difference.largest = std::max(difference.largest, std::abs(static_cast<double>(a[i]) - b[i]));
  difference.bits_equal = std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
  return difference;
}

// The chunks of a session's life: a prompt in several sizes, then single tokens.
const std::vector<uint32_t> kChunks = {17, 1, 1, 40, 3, 1, 1};

std::vector<std::vector<float>> ReferenceRun(ReferenceContext& reference, std::span<const Token> tokens) {
  std::vector<std::vector<float>> rows;
  size_t at = 0;
  for (uint32_t chunk : kChunks) {
    Result<HiddenState> logits = reference.Decode(tokens.subspan(at, chunk));
    EXPECT_TRUE(logits.ok()) << logits.status().message();
    if (!logits.ok()) return rows;
    rows.emplace_back(logits->values().begin(), logits->values().end());
    at += chunk;
  }
  return rows;
}

std::vector<std::vector<uint32_t>> CutsToTry(const std::vector<uint32_t>& legal) {
  std::vector<std::vector<uint32_t>> cuts;
  for (uint32_t cut : legal) cuts.push_back({cut});
  if (legal.size() >= 2) {
    cuts.push_back({legal.front(), legal[1]});
    cuts.push_back({legal[legal.size() / 2 - 1], legal.back()});
  }
  return cuts;
}

std::string Text(const std::vector<uint32_t>& cuts) {
  std::string text;
  for (uint32_t cut : cuts) text += (text.empty() ? "" : ",") + std::to_string(cut);
  return text;
}

class ParityTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { setenv("XDG_CACHE_HOME", cache_.path().c_str(), 1); }  // digests of models that are gone tomorrow
  const tiny::TestFolder cache_;
};

// Runs the same chunks through the reference and a route.
void ExpectEqualChunks(SplitRoute& route, SequenceId sequence, std::span<const Token> tokens, const std::vector<std::vector<float>>& expected,
                       const std::string& where) {
  size_t at = 0;
  for (size_t i = 0; i < kChunks.size(); ++i) {
    const std::span<const Token> part = tokens.subspan(at, kChunks[i]);
    Result<EngineOutcome> outcome = route.Run({.sequence = sequence, .tokens = {part.begin(), part.end()}});
    ASSERT_TRUE(outcome.ok()) << where << " chunk " << i << ": " << outcome.status().message();
    const Difference difference = Compare(outcome->output.values(), expected[i]);
    EXPECT_TRUE(difference.bits_equal) << where << " chunk " << i << " of " << kChunks[i] << " tokens at " << at << " differs by " << difference.largest;
    at += kChunks[i];
  }
}

TEST_P(ParityTest, EveryLegalCutGivesTheBitsOfOneContext) {
  const tiny::TestFolder folder;
  const std::string path = folder.File("model.gguf");
  const Status written = tiny::WriteTinyModel(SmallModel(GetParam()), path);
  ASSERT_TRUE(written.ok()) << written.message();
  Result<gguf::ModelFile> file = gguf::ModelFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  Result<gguf::ModelShape> shape = gguf::ReadModelShape(*file);
  ASSERT_TRUE(shape.ok()) << shape.status().message();
  const gguf::LegalCuts legal = gguf::FindLegalCuts(*file, *shape);
  ASSERT_FALSE(legal.cuts.empty()) << legal.reason;

  Result<std::unique_ptr<ReferenceContext>> reference = CreateReferenceContext(path, SmallOptions());
  ASSERT_TRUE(reference.ok()) << reference.status().message();
  size_t count = 0;
  for (uint32_t chunk : kChunks) count += chunk;
  const std::vector<Token> tokens = RandomTokens(count, shape->vocabulary_size, 11);
  const std::vector<std::vector<float>> expected = ReferenceRun(**reference, tokens);
  ASSERT_EQ(expected.size(), kChunks.size());

  size_t tried = 0;
  for (const std::vector<uint32_t>& cuts : CutsToTry(legal.cuts)) {
    Result<SplitRoute> route = SplitRoute::Create(path, cuts, SmallOptions(), folder.path());
    if (route.status().code() == StatusCode::kRefused) continue;  // such ranges next to each other are refused by name
    ASSERT_TRUE(route.ok()) << Text(cuts) << ": " << route.status().message();
    ++tried;
    ExpectEqualChunks(*route, SequenceId(1), tokens, expected, "cut " + Text(cuts));
    // Again in the cells that another session leaves behind.
    ASSERT_TRUE(route->Prefill(SequenceId(0), RandomTokens(90, shape->vocabulary_size, 5), 30).ok());
    route->Remove(SequenceId(0));
    route->Remove(SequenceId(1));
    ExpectEqualChunks(*route, SequenceId(0), tokens, expected, "cut " + Text(cuts) + " again");
  }
  EXPECT_GE(tried, legal.cuts.size() / 2);
}

TEST_P(ParityTest, TruncationAndRefillGiveTheBitsOfAnUndisturbedSession) {
  const tiny::TestFolder folder;
  const std::string path = folder.File("model.gguf");
  ASSERT_TRUE(tiny::WriteTinyModel(SmallModel(GetParam()), path).ok());
  Result<gguf::ModelFile> file = gguf::ModelFile::Open(path);
  ASSERT_TRUE(file.ok());
  Result<gguf::ModelShape> shape = gguf::ReadModelShape(*file);
  ASSERT_TRUE(shape.ok());
  const std::vector<uint32_t> legal = gguf::FindLegalCuts(*file, *shape).cuts;
  Result<SplitRoute> route = SplitRoute::Create(path, {legal[legal.size() / 2]}, SmallOptions(), folder.path());
  ASSERT_TRUE(route.ok()) << route.status().message();
  const std::vector<Token> tokens = RandomTokens(60, shape->vocabulary_size, 3), other = RandomTokens(25, shape->vocabulary_size, 4);
  Result<std::vector<float>> expected = route->Prefill(SequenceId(0), tokens, 20);
  ASSERT_TRUE(expected.ok()) << expected.status().message();

  // Sequence 1 takes a wrong turn after 20 tokens and comes back.
  ASSERT_TRUE(route->Prefill(SequenceId(1), std::span(tokens).first(20), 20).ok());
  ASSERT_TRUE(route->Prefill(SequenceId(1), other, 25).ok());
  ASSERT_TRUE(route->Truncate(SequenceId(1), PastLen(20)));
  EXPECT_EQ(route->tail().past_len(SequenceId(1)), PastLen(20));
  Result<std::vector<float>> refilled = route->Prefill(SequenceId(1), std::span(tokens).subspan(20), 20);
  ASSERT_TRUE(refilled.ok()) << refilled.status().message();
  EXPECT_TRUE(Compare(std::span(*expected).last(refilled->size()), *refilled).bits_equal);
}

TEST(StageLimitsTest, ATailGivesFewRowsOfLogits) {
  const tiny::TestFolder folder;
  const std::string path = folder.File("model.gguf");
  ASSERT_TRUE(tiny::WriteTinyModel(SmallModel("llama"), path).ok());
  EngineOptions options = SmallOptions();
  options.ubatch_tokens = 256;
  Result<SplitRoute> route = SplitRoute::Create(path, {3}, options, folder.path());
  ASSERT_TRUE(route.ok()) << route.status().message();
  EXPECT_EQ(route->stage(0).info().chunk_rows_max, 256u);
  EXPECT_EQ(route->tail().info().chunk_rows_max, 256u);
  EXPECT_FALSE(route->stage(0).CheckSampling(SamplingParams()).ok());
  EXPECT_TRUE(route->tail().CheckSampling(SamplingParams()).ok());

  const std::vector<Token> tokens = RandomTokens(200, 256, 1);
  const HiddenState input(200, 64, std::vector<float>(200 * 64, 0.1f));
  EngineStep step = {.sequence = SequenceId(0), .start = PastLen(0), .tokens = tokens, .input = &input, .rows = RowsWanted::kAll, .logits_wanted = true};
  const EngineOutcome many = std::move(route->tail().Run({&step, 1}).front());
  EXPECT_EQ(many.fate, EngineFate::kRolledBack);
  EXPECT_NE(many.cause.find("at most 128"), std::string::npos) << many.cause;
  step.rows = RowsWanted::kLast;
  EXPECT_EQ(route->tail().Run({&step, 1}).front().fate, EngineFate::kDone);
}

// Certified, and known to the writer of tiny models.
std::vector<std::string> Certified() {
  std::vector<std::string> names;
  for (const std::string& name : tiny::TinyArchitectures()) {
    const auto rules = gguf::CertifiedArchitectures();
    if (std::any_of(rules.begin(), rules.end(), [&name](const gguf::ArchitectureRule& rule) { return rule.name == name; })) names.push_back(name);
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(Architectures, ParityTest, testing::ValuesIn(Certified()), [](const auto& test) {
  std::string name = test.param;
  for (char& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return name;
});

}  // namespace
}  // namespace meshnet::parity
