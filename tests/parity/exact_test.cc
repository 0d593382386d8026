// Numerics mode exact: a session's bits depend on its tokens only, not on chunks, neighbours, threads, context, layout, truncation or replay.
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "gguf/cut_plan.h"
#include "gguf/model_file.h"
#include "gguf/model_shape.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parity/split_route.h"
#include "tiny/test_folder.h"
#include "tiny/tiny_model.h"

namespace meshnet::parity {
namespace {

constexpr size_t kPromptTokens = 560;  // past 512, where attention starts to be split between threads
constexpr size_t kAnswerTokens = 4;

EngineOptions ExactOptions() {
  EngineOptions options;
  options.numerics = NumericsMode::kExact;
  options.threads = 1;
  options.sessions_max = 4;
  options.context_tokens = 768;
  options.budget_tokens = 4 * 768;
  options.ubatch_tokens = 128;
  return options;
}

struct Model {
  std::string name;
  std::string architecture;
  std::string kv_type = "bf16";
};

void PrintTo(const Model& model, std::ostream* out) { *out << model.name; }

class ExactTest : public testing::TestWithParam<Model> {
 protected:
  void SetUp() override {
    setenv("XDG_CACHE_HOME", folder_.path().c_str(), 1);  // digests of models that are gone tomorrow
    tiny::TinyModelOptions model;
    model.architecture = GetParam().architecture;
    model.layers = 4;
    model.width = 128;
    model.heads = 2;
    model.feed_forward = 192;
    model.weights = tiny::WeightType::kQ8_0;
    model.window = 24;
    ASSERT_TRUE(tiny::WriteTinyModel(model, path()).ok());
    Result<gguf::ModelFile> file = gguf::ModelFile::Open(path());
    ASSERT_TRUE(file.ok());
    Result<gguf::ModelShape> shape = gguf::ReadModelShape(*file);
    ASSERT_TRUE(shape.ok());
    const std::vector<uint32_t> legal = gguf::FindLegalCuts(*file, *shape).cuts;
    ASSERT_FALSE(legal.empty());
    cut_ = legal[legal.size() / 2];
    for (uint64_t session = 0; session < 4; ++session) {
      tokens_.push_back(RandomTokens(kPromptTokens + kAnswerTokens, shape->vocabulary_size, 17 + session));
    }
  }

  std::string path() const { return folder_.File("model.gguf"); }

  Result<SplitRoute> Open(EngineOptions options) {
    options.kv_type_k = options.kv_type_v = GetParam().kv_type;
    return SplitRoute::Create(path(), {cut_}, options, folder_.path());
  }

  void Prefill(SplitRoute& route, int32_t sequence, size_t session, size_t end, uint32_t chunk) {
    const uint32_t past = route.tail().past_len(SequenceId(sequence)).value;
    const Status status = route.Prefill(SequenceId(sequence), std::span(tokens_[session]).subspan(past, end - past), chunk).status();
    ASSERT_TRUE(status.ok()) << status.message();
  }

  // The logits of the answer's tokens, one step each.
  std::vector<float> Answer(SplitRoute& route, int32_t sequence, size_t session) {
    Result<std::vector<float>> logits = route.Prefill(SequenceId(sequence), std::span(tokens_[session]).subspan(kPromptTokens), 1);
    EXPECT_TRUE(logits.ok()) << logits.status().message();
    return logits.ok() ? std::move(*logits) : std::vector<float>();
  }

  std::vector<float> Alone(size_t session) {
    Result<SplitRoute> route = Open(ExactOptions());
    EXPECT_TRUE(route.ok()) << route.status().message();
    if (!route.ok()) return {};
    Prefill(*route, 0, session, kPromptTokens, 64);
    return Answer(*route, 0, session);
  }

  tiny::TestFolder folder_;
  uint32_t cut_ = 0;
  std::vector<std::vector<Token>> tokens_;
};

TEST_P(ExactTest, AnswerDoesNotDependOnHowItWasReached) {
  const std::vector<float> alone = Alone(0);
  ASSERT_FALSE(alone.empty());
  struct Way {
    std::string name;
    std::function<void(EngineOptions&)> options = [](EngineOptions&) {};
    std::function<void(SplitRoute&)> walk;
  };
  const auto in_chunks = [&](uint32_t chunk) { return [this, chunk](SplitRoute& route) { Prefill(route, 0, 0, kPromptTokens, chunk); }; };
  const std::vector<Way> ways = {
      {"chunks of 48", [](EngineOptions&) {}, in_chunks(48)},
      {"chunks of 128", [](EngineOptions&) {}, in_chunks(128)},
      {"-ub 16", [](EngineOptions& o) { o.ubatch_tokens = 16; }, in_chunks(16)},
      {"two threads", [](EngineOptions& o) { o.threads = 2; }, in_chunks(64)},
      {"a larger context", [](EngineOptions& o) { o.context_tokens = 1500, o.budget_tokens = 6000; }, in_chunks(64)},
      {"one pool", [](EngineOptions& o) { o.budget_tokens = 2000; }, in_chunks(64)},
      {"the last 40 tokens one by one", [](EngineOptions&) {},
       [&](SplitRoute& route) {
         Prefill(route, 0, 0, kPromptTokens - 40, 64);
         Prefill(route, 0, 0, kPromptTokens, 1);
       }},
      {"cells of an earlier owner", [](EngineOptions&) {},
       [&](SplitRoute& route) {
         Prefill(route, 0, 1, 300, 64);
         route.Remove(SequenceId(0));
         Prefill(route, 0, 0, kPromptTokens, 64);
       }},
  };
  for (const Way& way : ways) {
    EngineOptions options = ExactOptions();
    way.options(options);
    Result<SplitRoute> route = Open(options);
    ASSERT_TRUE(route.ok()) << way.name << ": " << route.status().message();
    way.walk(*route);
    EXPECT_TRUE(Answer(*route, 0, 0) == alone) << way.name;
  }
}

TEST_P(ExactTest, ATurnThatWasTakenBackLeavesNoTrace) {
  const std::vector<float> alone = Alone(0);
  Result<SplitRoute> route = Open(ExactOptions());
  ASSERT_TRUE(route.ok()) << route.status().message();
  Prefill(*route, 0, 0, kPromptTokens, 64);
  ASSERT_TRUE(route->Prefill(SequenceId(0), std::span(tokens_[2]).first(50), 50).ok());
  ASSERT_TRUE(route->Truncate(SequenceId(0), PastLen(kPromptTokens)));
  EXPECT_TRUE(Answer(*route, 0, 0) == alone);
}

TEST_P(ExactTest, FourInterleavedSessionsEqualFourAlone) {
  Result<SplitRoute> route = Open(ExactOptions());
  ASSERT_TRUE(route.ok()) << route.status().message();
  for (size_t end = 70; end < kPromptTokens; end += 70) {
    for (int32_t session = 0; session < 4; ++session) Prefill(*route, session, static_cast<size_t>(session), end + static_cast<size_t>(session), 64);
  }
  for (int32_t session = 0; session < 4; ++session) Prefill(*route, session, static_cast<size_t>(session), kPromptTokens, 64);
  std::vector<std::vector<float>> logits(4);
  for (size_t i = 0; i < kAnswerTokens; ++i) {
    std::vector<RouteStep> steps;
    for (size_t session = 0; session < 4; ++session) {
      steps.push_back({.sequence = SequenceId(static_cast<int32_t>(session)), .tokens = {tokens_[session][kPromptTokens + i]}});
    }
    Result<std::vector<EngineOutcome>> outcomes = route->Run(steps);
    ASSERT_TRUE(outcomes.ok()) << outcomes.status().message();
    for (size_t session = 0; session < 4; ++session) {
      const auto values = (*outcomes)[session].output.values();
      logits[session].insert(logits[session].end(), values.begin(), values.end());
    }
  }
  for (size_t session = 0; session < 4; ++session) EXPECT_TRUE(logits[session] == Alone(session)) << session;
}

INSTANTIATE_TEST_SUITE_P(Models, ExactTest,
                         testing::Values(Model{"Llama", "llama"}, Model{"LlamaQ8Kv", "llama", "q8_0"}, Model{"Qwen2", "qwen2"}, Model{"Gemma3", "gemma3"},
                                         Model{"Phi3", "phi3"}),
                         [](const auto& test) { return test.param.name; });

TEST(ExactModeTest, RefusesWhatIsNotProved) {
  const tiny::TestFolder folder;
  struct Case {
    std::string architecture;
    tiny::WeightType weights;
    std::string reason;
  };
  for (const Case& row : {Case{"llama", tiny::WeightType::kF32, "type f32"}, Case{"llama", tiny::WeightType::kF16, "type f16"},
                          Case{"qwen3moe", tiny::WeightType::kQ8_0, "ffn_gate_inp"}}) {
    tiny::TinyModelOptions model;
    model.architecture = row.architecture;
    model.weights = row.weights;
    const std::string path = folder.File(row.architecture + ".gguf");
    ASSERT_TRUE(tiny::WriteTinyModel(model, path).ok());
    const Status status = SplitRoute::Create(path, {2}, ExactOptions(), folder.path()).status();
    EXPECT_EQ(status.code(), StatusCode::kRefused) << row.architecture;
    EXPECT_THAT(status.message(), testing::HasSubstr(row.reason)) << row.architecture;
  }
}

}  // namespace
}  // namespace meshnet::parity
