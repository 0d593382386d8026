// The real models, cut and whole, bit for bit. Runs with MESHNET_REAL_MODELS=1.
#include <cstring>
#include <string>
#include <vector>

#include "engine/llama/engine_settings.h"
#include "engine/llama/llama_shard_engine.h"
#include "gguf/cut_plan.h"
#include "gguf/model_file.h"
#include "gguf/model_shape.h"
#include "gtest/gtest.h"
#include "parity/split_route.h"
#include "plan/memory_estimate.h"
#include "tiny/real_model.h"
#include "tiny/test_folder.h"

namespace meshnet::parity {
namespace {

class RealModelTest : public testing::Test {
 protected:
  // Skips the test when the lane is off or the model is not there.
  void Use(const std::string& name) {
    path_ = tiny::RealModel(name);
    if (path_.empty()) {
      GTEST_SKIP() << "set MESHNET_REAL_MODELS=1; how to get the model: scripts/model " << name;
    }
    Result<gguf::ModelFile> file = gguf::ModelFile::Open(path_);
    ASSERT_TRUE(file.ok()) << file.status().message();
    Result<gguf::ModelShape> shape = gguf::ReadModelShape(*file);
    ASSERT_TRUE(shape.ok()) << shape.status().message();
    shape_ = *shape;
    legal_ = gguf::FindLegalCuts(*file, *shape);
  }

  static EngineOptions Options(NumericsMode mode) {
    EngineOptions options;
    options.numerics = mode;
    options.sessions_max = 4;
    options.context_tokens = 512;
    options.budget_tokens = 2048;
    return options;
  }

  // A prompt in chunks, then single tokens, through both sides. A cut may also be refused by name when `refusal` allows it.
  enum class Refusal { kFails, kPasses };
  void ExpectBitEqual(const std::vector<uint32_t>& cuts, const std::vector<uint32_t>& chunks, Refusal refusal = Refusal::kFails) {
    Result<SplitRoute> route = SplitRoute::Create(path_, cuts, Options(NumericsMode::kFast), folder_.path());
    if (refusal == Refusal::kPasses && route.status().code() == StatusCode::kRefused) return;
    ASSERT_TRUE(route.ok()) << route.status().message();
    Result<std::unique_ptr<ReferenceContext>> reference = CreateReferenceContext(path_, Options(NumericsMode::kFast));
    ASSERT_TRUE(reference.ok()) << reference.status().message();
    size_t count = 0;
    for (uint32_t chunk : chunks) count += chunk;
    const std::vector<Token> tokens = RandomTokens(count, shape_.vocabulary_size, 23);
    size_t at = 0;
    for (uint32_t chunk : chunks) {
      const std::span<const Token> part = std::span(tokens).subspan(at, chunk);
      Result<HiddenState> expected = (*reference)->Decode(part);
      ASSERT_TRUE(expected.ok()) << expected.status().message();
      Result<EngineOutcome> outcome = route->Run({.sequence = SequenceId(2), .tokens = {part.begin(), part.end()}});
      ASSERT_TRUE(outcome.ok()) << outcome.status().message();
      ASSERT_EQ(outcome->output.values().size(), expected->values().size());
      EXPECT_EQ(std::memcmp(outcome->output.values().data(), expected->values().data(), expected->values().size_bytes()), 0) << "chunk at " << at;
      at += chunk;
    }
  }

  std::vector<std::vector<float>> Answers(SplitRoute& route, const std::vector<size_t>& sessions) {
    std::vector<std::vector<float>> logits(sessions.size());
    std::vector<std::vector<Token>> tokens;
    for (size_t i = 0; i < sessions.size(); ++i) {
      tokens.push_back(RandomTokens(40 + 7 * sessions[i], shape_.vocabulary_size, sessions[i]));
      EXPECT_TRUE(route.Prefill(SequenceId(static_cast<int32_t>(sessions[i])), tokens.back(), 48).ok());
    }
    for (uint64_t step = 0; step < 4; ++step) {
      std::vector<RouteStep> steps;
      for (size_t session : sessions) {
        steps.push_back({.sequence = SequenceId(static_cast<int32_t>(session)), .tokens = RandomTokens(1, shape_.vocabulary_size, 1000 * session + step)});
      }
      Result<std::vector<EngineOutcome>> outcomes = route.Run(steps);
      EXPECT_TRUE(outcomes.ok()) << outcomes.status().message();
      for (size_t i = 0; outcomes.ok() && i < sessions.size(); ++i) {
        logits[i].insert(logits[i].end(), (*outcomes)[i].output.values().begin(), (*outcomes)[i].output.values().end());
      }
    }
    return logits;
  }

  void ExpectFourTogetherEqualFourAlone(const std::vector<uint32_t>& cuts) {
    Result<SplitRoute> route = SplitRoute::Create(path_, cuts, Options(NumericsMode::kExact), folder_.path());
    ASSERT_TRUE(route.ok()) << route.status().message();
    const std::vector<std::vector<float>> together = Answers(*route, {0, 1, 2, 3});
    for (int32_t session = 0; session < 4; ++session) route->Remove(SequenceId(session));
    for (size_t session = 0; session < 4; ++session) {
      EXPECT_TRUE(Answers(*route, {session}).front() == together[session]) << session;
      route->Remove(SequenceId(static_cast<int32_t>(session)));
    }
  }

  void ExpectKvBytesAsPredicted(const std::vector<uint32_t>& cuts) {
    Result<SplitRoute> route = SplitRoute::Create(path_, cuts, Options(NumericsMode::kFast), folder_.path());
    ASSERT_TRUE(route.ok()) << route.status().message();
    for (size_t i = 0; i < route->stage_count(); ++i) {
      const LayerRange range = route->stage(i).info().range;
      const OutputRows output = range.end == shape_.layer_count ? OutputRows::kFew : OutputRows::kAll;
      const plan::KvSettings settings = KvSettingsOf(*ResolveSettings(Options(NumericsMode::kFast), output, 1));
      const auto allocated = static_cast<double>(route->stage(i).memory().kv_bytes);
      EXPECT_NEAR(allocated / static_cast<double>(plan::EstimateKv(shape_, range, settings)->bytes), 1.0, 0.02) << range.Text();
    }
  }

  tiny::TestFolder folder_;
  std::string path_;
  gguf::ModelShape shape_;
  gguf::LegalCuts legal_;
};

// GTEST_SKIP inside a helper ends only the helper.
#define MESHNET_USE_MODEL(name) \
  Use(name);                    \
  if (IsSkipped() || HasFatalFailure()) return

const std::vector<uint32_t> kChunks = {41, 1, 1, 128, 1, 1, 1};

TEST_F(RealModelTest, SmolLm2CutNearItsEndsAndInThirds) {
  MESHNET_USE_MODEL("smollm2-135m");
  ExpectBitEqual({1, 29}, kChunks);
  ExpectBitEqual({10, 20}, kChunks);
}

TEST_F(RealModelTest, Gemma3CutAnywhere) {
  MESHNET_USE_MODEL("gemma3-270m");
  ASSERT_FALSE(legal_.cuts.empty()) << legal_.reason;
  for (uint32_t cut = 1; cut < shape_.layer_count; ++cut) {
    SCOPED_TRACE("cut " + std::to_string(cut));
    ExpectBitEqual({cut}, {23, 1, 1}, Refusal::kPasses);
  }
  ExpectBitEqual({7}, {128, 128, 128, 64, 1, 1});
}

TEST_F(RealModelTest, QwenInTwo) {
  MESHNET_USE_MODEL("qwen2.5-coder-1.5b");
  ExpectBitEqual({14}, kChunks);
}

TEST_F(RealModelTest, FourSessionsTogetherEqualFourAloneOnSmolLm2) {
  MESHNET_USE_MODEL("smollm2-135m");
  ExpectFourTogetherEqualFourAlone({10, 20});
}

TEST_F(RealModelTest, FourSessionsTogetherEqualFourAloneOnGemma3) {
  MESHNET_USE_MODEL("gemma3-270m");
  ExpectFourTogetherEqualFourAlone({7});
}

TEST_F(RealModelTest, FourSessionsTogetherEqualFourAloneOnQwen) {
  MESHNET_USE_MODEL("qwen2.5-coder-1.5b");
  ExpectFourTogetherEqualFourAlone({14});
}

TEST_F(RealModelTest, KvBytesAreWhatTheHeaderPredicts) {
  for (const char* name : {"smollm2-135m", "gemma3-270m"}) {
    MESHNET_USE_MODEL(name);
    ExpectKvBytesAsPredicted({6, 12});
  }
}

}  // namespace
}  // namespace meshnet::parity
