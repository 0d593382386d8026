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
  void SetUp() override {
    setenv("XDG_CACHE_HOME", folder_.path().c_str(), 1);  // digests of models that are gone tomorrow
    const Status written = tiny::WriteTinyModel(SmallModel(GetParam()), path());
    ASSERT_TRUE(written.ok()) << written.message();
    Result<gguf::ModelFile> file = gguf::ModelFile::Open(path());
    ASSERT_TRUE(file.ok()) << file.status().message();
    Result<gguf::ModelShape> shape = gguf::ReadModelShape(*file);
    ASSERT_TRUE(shape.ok()) << shape.status().message();
    vocabulary_ = shape->vocabulary_size;
    const gguf::LegalCuts legal = gguf::FindLegalCuts(*file, *shape);
    ASSERT_FALSE(legal.cuts.empty()) << legal.reason;
    cuts_ = legal.cuts;
  }

  std::string path() const { return folder_.File("model.gguf"); }
  Result<SplitRoute> Open(const std::vector<uint32_t>& cuts) const { return SplitRoute::Create(path(), cuts, SmallOptions(), folder_.path()); }

  const tiny::TestFolder folder_;
  uint32_t vocabulary_ = 0;
  std::vector<uint32_t> cuts_;  // legal ones
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
  Result<std::unique_ptr<ReferenceContext>> reference = CreateReferenceContext(path(), SmallOptions());
  ASSERT_TRUE(reference.ok()) << reference.status().message();
  size_t count = 0;
  for (uint32_t chunk : kChunks) count += chunk;
  const std::vector<Token> tokens = RandomTokens(count, vocabulary_, 11);
  const std::vector<std::vector<float>> expected = ReferenceRun(**reference, tokens);
  ASSERT_EQ(expected.size(), kChunks.size());

  size_t tried = 0;
  for (const std::vector<uint32_t>& cuts : CutsToTry(cuts_)) {
    Result<SplitRoute> route = Open(cuts);
    if (route.status().code() == StatusCode::kRefused) continue;  // such ranges next to each other are refused by name
    ASSERT_TRUE(route.ok()) << Text(cuts) << ": " << route.status().message();
    ++tried;
    ExpectEqualChunks(*route, SequenceId(1), tokens, expected, "cut " + Text(cuts));
    // Again in the cells that another session leaves behind.
    ASSERT_TRUE(route->Prefill(SequenceId(0), RandomTokens(90, vocabulary_, 5), 30).ok());
    route->Remove(SequenceId(0));
    route->Remove(SequenceId(1));
    ExpectEqualChunks(*route, SequenceId(0), tokens, expected, "cut " + Text(cuts) + " again");
  }
  EXPECT_GE(tried, cuts_.size() / 2);
}

TEST_P(ParityTest, TruncationAndRefillGiveTheBitsOfAnUndisturbedSession) {
  Result<SplitRoute> route = Open({cuts_[cuts_.size() / 2]});
  ASSERT_TRUE(route.ok()) << route.status().message();
  const std::vector<Token> tokens = RandomTokens(60, vocabulary_, 3), other = RandomTokens(25, vocabulary_, 4);
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

// Two prompts whose chunks share their calls, then one token of each: the logits of the answers.
std::vector<float> RunTogether(SplitRoute& route, const std::vector<std::vector<Token>>& prompts) {
  constexpr size_t kEach = 20;
  std::vector<float> logits;
  for (size_t begin = 0; begin + kEach < prompts.front().size(); begin += kEach) {
    std::vector<RouteStep> steps;
    for (size_t i = 0; i < prompts.size(); ++i) {
      const auto part = prompts[i].begin() + static_cast<ptrdiff_t>(begin);
      steps.push_back({.sequence = SequenceId(static_cast<int32_t>(i)), .tokens = {part, part + kEach}, .logits_wanted = false});
    }
    const Status status = route.Run(steps).status();
    EXPECT_TRUE(status.ok()) << status.message();
  }
  for (size_t i = 0; i < prompts.size(); ++i) {
    Result<EngineOutcome> last = route.Run({.sequence = SequenceId(static_cast<int32_t>(i)), .tokens = {prompts[i].back()}});
    EXPECT_TRUE(last.ok()) << last.status().message();
    if (last.ok()) logits.insert(logits.end(), last->output.values().begin(), last->output.values().end());
  }
  return logits;
}

TEST_P(ParityTest, ChunksThatShareACallBelongToTheirSessions) {
  Result<SplitRoute> route = Open({cuts_[cuts_.size() / 2]});
  ASSERT_TRUE(route.ok()) << route.status().message();
  Result<SplitRoute> whole = Open({});
  ASSERT_TRUE(whole.ok()) << whole.status().message();
  const std::vector<std::vector<Token>> prompts = {RandomTokens(61, vocabulary_, 7), RandomTokens(61, vocabulary_, 8)};
  const std::vector<float> together = RunTogether(*route, prompts);
  EXPECT_TRUE(Compare(together, RunTogether(*whole, prompts)).bits_equal);

  std::vector<float> alone;
  for (const std::vector<Token>& prompt : prompts) {
    route->Remove(SequenceId(0));
    const std::vector<float> answer = RunTogether(*route, {prompt});
    alone.insert(alone.end(), answer.begin(), answer.end());
  }
  // Other step shapes, so other last bits; a row of the other session would be far off.
  EXPECT_LT(Compare(together, alone).largest, 1e-3);
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
