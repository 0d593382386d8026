#include "engine/llama/llama_engine.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "engine/llama/llama_shard_engine.h"
#include "engine/llama/test_engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace meshnet {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<Token> Tokens(size_t count, Token first = 1) {
  std::vector<Token> tokens(count);
  for (size_t i = 0; i < count; ++i) tokens[i] = static_cast<Token>((static_cast<size_t>(first) + 7 * i) % 256);
  return tokens;
}

EngineOptions ExactOptions() {
  EngineOptions options = TestEngine::SmallOptions();
  options.numerics = NumericsMode::kExact;
  return options;
}

tiny::TinyModelOptions Quantised() {
  tiny::TinyModelOptions model;
  model.weights = tiny::WeightType::kQ8_0;
  return model;
}

TEST(LlamaEngineTest, PublishesWhatWasReallyAllocated) {
  EngineOptions options = TestEngine::SmallOptions();
  options.context_tokens = 100;
  options.budget_tokens = 400;
  TestEngine engine({}, options);
  const EngineInfo& info = engine->info();
  EXPECT_EQ(info.range, (LayerRange{0, 4}));
  EXPECT_EQ(info.layer_count, 4u);
  EXPECT_EQ(info.sequences_max, 4u);
  EXPECT_EQ(info.context_tokens, 256u);  // llama.cpp rounds up
  EXPECT_EQ(info.budget_tokens, 1024u);
  EXPECT_EQ(info.chunk_rows_max, 64u);
  EXPECT_EQ(info.boundary_width, 64u);
  EXPECT_EQ(info.vocabulary_size, 256u);
  EXPECT_EQ(info.truncation_class, TruncationClass::kFull);
  EXPECT_EQ(info.numerics.kv_type_k, "f16");
  EXPECT_EQ(info.numerics.context_tokens, 256u);
  EXPECT_EQ(info.numerics.engine_tree.size(), 40u);
  EXPECT_FALSE(info.numerics.cpu_features.empty());
}

TEST(LlamaEngineTest, MemoryComesFromLlamasBooks) {
  TestEngine engine;
  const EngineMemory memory = engine->memory();
  // 4 layers, keys and values of 32 f16 elements (one KV head of 32), 1024 cells.
  EXPECT_EQ(memory.kv_bytes, 4u * 2 * 32 * 2 * 1024);
  EXPECT_GT(memory.weight_bytes, 256u * 64 * 4);
  EXPECT_GT(memory.compute_bytes, 0u);
}

TEST(LlamaEngineTest, RowsOfABatchBelongToTheirSequencesEvenWithGaps) {
  TestEngine engine(Quantised(), ExactOptions());
  std::vector<std::vector<float>> alone;
  for (int32_t sequence : {0, 1, 3}) {
    ASSERT_EQ(engine.Feed(sequence, Tokens(10 + static_cast<size_t>(sequence), sequence)).fate, EngineFate::kDone);
    alone.push_back(ValuesOf(engine.Feed(sequence, {static_cast<Token>(50 + sequence)})));
    ASSERT_TRUE(engine->Truncate(SequenceId(sequence), PastLen(10 + static_cast<uint32_t>(sequence))));
  }
  const std::vector<EngineOutcome> together = engine.FeedTogether({{0, 50}, {1, 51}, {3, 53}});
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(ValuesOf(together[i]), alone[i]) << i;
}

TEST(LlamaEngineTest, RowsWantedDecidesWhatComesBack) {
  TestEngine engine(Quantised(), ExactOptions());
  const EngineOutcome all = engine.Feed(0, Tokens(5));
  EXPECT_EQ(all.output.rows(), 5u);
  const std::vector<Token> tokens = Tokens(5);
  EngineStep step = {.sequence = SequenceId(1), .start = PastLen(0), .tokens = tokens, .rows = RowsWanted::kLast, .logits_wanted = true};
  const EngineOutcome last = std::move(engine->Run({&step, 1}).front());
  ASSERT_EQ(last.output.rows(), 1u);
  EXPECT_EQ(LastRowOf(last), LastRowOf(all));
  step = {.sequence = SequenceId(2), .start = PastLen(0), .tokens = tokens, .rows = RowsWanted::kNone};
  const EngineOutcome none = std::move(engine->Run({&step, 1}).front());
  EXPECT_EQ(none.fate, EngineFate::kDone);
  EXPECT_TRUE(none.output.empty());
}

TEST(LlamaEngineTest, ContextOverflowTouchesNothing) {
  TestEngine engine;
  for (int i = 0; i < 4; ++i) ASSERT_EQ(engine.Feed(0, Tokens(63)).fate, EngineFate::kDone);
  const EngineOutcome outcome = engine.Feed(0, Tokens(10));
  EXPECT_EQ(outcome.fate, EngineFate::kRolledBack);
  EXPECT_THAT(outcome.cause, HasSubstr("pass the context of 256"));
  EXPECT_EQ(engine.past_len(0), PastLen(252));
  EXPECT_EQ(engine.Feed(0, Tokens(4)).fate, EngineFate::kDone);
}

TEST(LlamaEngineTest, AFullPoolOfCellsRollsBack) {
  EngineOptions options = TestEngine::SmallOptions();
  options.budget_tokens = 256;  // one pool for four sessions of 256
  TestEngine engine({}, options);
  for (int32_t sequence = 0; sequence < 4; ++sequence) ASSERT_EQ(engine.Feed(sequence, Tokens(60)).fate, EngineFate::kDone);
  const EngineOutcome outcome = engine.Feed(0, Tokens(20));
  EXPECT_EQ(outcome.fate, EngineFate::kRolledBack);
  EXPECT_THAT(outcome.cause, HasSubstr("no free cells"));
  EXPECT_EQ(engine.past_len(0), PastLen(60));
  engine->Remove(SequenceId(3));
  EXPECT_EQ(engine.Feed(0, Tokens(20)).fate, EngineFate::kDone);
}

TEST(LlamaEngineTest, ABrokenComputationIsRolledBackAndProven) {
  TestEngine engine(Quantised(), ExactOptions());
  const std::vector<float> undisturbed = [&] {
    engine.Feed(1, Tokens(20));
    return ValuesOf(engine.Feed(1, Tokens(8, 3)));
  }();
  engine.Feed(0, Tokens(20));
  engine.BreakNextDecode();
  const EngineOutcome broken = engine.Feed(0, Tokens(8, 3));
  EXPECT_EQ(broken.fate, EngineFate::kRolledBack);
  EXPECT_THAT(broken.cause, HasSubstr("llama_decode failed with code 2"));
  EXPECT_EQ(engine.past_len(0), PastLen(20));
  EXPECT_EQ(ValuesOf(engine.Feed(0, Tokens(8, 3))), undisturbed);
}

TEST(LlamaEngineTest, ABrokenSharedCallIsRetriedOneByOne) {
  TestEngine engine(Quantised(), ExactOptions());
  for (int32_t sequence : {0, 1, 2}) engine.Feed(sequence, Tokens(9, sequence));
  engine.BreakNextDecode();
  const std::vector<EngineOutcome> outcomes = engine.FeedTogether({{0, 5}, {1, 6}, {2, 7}});
  for (const EngineOutcome& outcome : outcomes) EXPECT_EQ(outcome.fate, EngineFate::kDone) << outcome.cause;
  EXPECT_EQ(engine.past_len(2), PastLen(10));
  EXPECT_EQ(LastRowOf(engine.Feed(3, [] {
              std::vector<Token> tokens = Tokens(9, 1);
              tokens.push_back(6);
              return tokens;
            }())),
            LastRowOf(outcomes[1]));
}

// Sequences that compute together change their places in llama.cpp, with truncations and new owners in between; none notices.
TEST(LlamaEngineTest, ExchangedSequencesComputeWhatTheyWouldAlone) {
  EngineOptions options = ExactOptions();  // a row's bits do not depend on who is computed with it
  options.sessions_max = 8;
  options.budget_tokens = 8 * options.context_tokens;
  TestEngine engine(Quantised(), options);
  TestEngine alone(Quantised(), options);
  std::mt19937 random(11);
  std::vector<std::vector<Token>> logs(8);
  uint64_t compared = 0;
  for (int round = 0; round < 400; ++round) {
    std::vector<std::pair<int32_t, Token>> together;
    for (int32_t sequence = 0; sequence < 8; ++sequence) {
      std::vector<Token>& log = logs[static_cast<size_t>(sequence)];
      if (log.size() > 40 && random() % 4 == 0) {
        engine->Remove(SequenceId(sequence));
        log.clear();
      } else if (log.size() > 4 && random() % 16 == 0) {
        log.resize(log.size() / 2);
        ASSERT_TRUE(engine->Truncate(SequenceId(sequence), PastLen(static_cast<uint32_t>(log.size()))));
      }
      if (random() % 2 == 0) together.emplace_back(sequence, static_cast<Token>(random() % 60));
    }
    if (together.empty()) continue;
    const std::vector<EngineOutcome> outcomes = engine.FeedTogether(together);
    for (size_t i = 0; i < together.size(); ++i) {
      ASSERT_EQ(outcomes[i].fate, EngineFate::kDone) << outcomes[i].cause;
      logs[static_cast<size_t>(together[i].first)].push_back(together[i].second);
    }
    if (round % 10 != 0) continue;
    for (size_t i = 0; i < together.size(); ++i, ++compared) {
      alone->Remove(SequenceId(0));
      ASSERT_EQ(LastRowOf(alone.Feed(0, logs[static_cast<size_t>(together[i].first)])), LastRowOf(outcomes[i])) << round;
    }
  }
  EXPECT_GT(compared, 100u);
  EXPECT_GT(engine->lane_exchanges(), 20u);
}

TEST(LlamaEngineTest, MistakesOfTheCallerEndTheProcess) {
  TestEngine engine;
  const std::vector<Token> tokens = Tokens(3);
  const auto run = [&](EngineStep step) { static_cast<void>(engine->Run({&step, 1})); };
  EXPECT_DEATH(run({.sequence = SequenceId(-1), .start = PastLen(0), .tokens = tokens}), "broken invariant");
  EXPECT_DEATH(run({.sequence = SequenceId(4), .start = PastLen(0), .tokens = tokens}), "broken invariant");
  EXPECT_DEATH(run({.sequence = SequenceId(0), .start = PastLen(1), .tokens = tokens}), "broken invariant");
  EXPECT_DEATH(engine->Remove(SequenceId(-1)), "broken invariant");
  const std::vector<Token> outside = {256};
  EXPECT_DEATH(run({.sequence = SequenceId(0), .start = PastLen(0), .tokens = outside}), "broken invariant");
}

TEST(LlamaEngineTest, AWindowModelTruncatesOnlyWhereItsWindowIsIntact) {
  tiny::TinyModelOptions model;
  model.architecture = "gemma3";
  model.window = 16;
  model.layers = 6;
  EngineOptions options = TestEngine::SmallOptions();
  options.context_tokens = 1024;
  options.budget_tokens = 4096;
  TestEngine engine(model, options);
  EXPECT_EQ(engine->info().truncation_class, TruncationClass::kWindow);
  EXPECT_EQ(engine->info().window_tokens, 16u);
  for (int i = 0; i < 10; ++i) ASSERT_EQ(engine.Feed(0, Tokens(60)).fate, EngineFate::kDone);
  const PastLen intact = engine->intact_from(SequenceId(0));
  EXPECT_GT(intact.value, 100u);  // cells have been recycled
  EXPECT_TRUE(engine->Truncate(SequenceId(0), PastLen(intact.value + 16)));
  EXPECT_EQ(engine.Feed(0, Tokens(5)).fate, EngineFate::kDone);
  EXPECT_FALSE(engine->Truncate(SequenceId(0), PastLen(intact.value + 5)));
  EXPECT_EQ(engine.Feed(0, Tokens(1)).fate, EngineFate::kLost);
  engine->Remove(SequenceId(0));
  EXPECT_EQ(engine.past_len(0), PastLen(0));
  EXPECT_EQ(engine->intact_from(SequenceId(0)), PastLen(0));
  EXPECT_EQ(engine.Feed(0, Tokens(5)).fate, EngineFate::kDone);
}

TEST(LlamaEngineTest, RefusesFilesThatLlamaCannotRunByName) {
  EngineOptions options = TestEngine::SmallOptions();
  options.shard_path = "/nowhere/model.gguf";
  EXPECT_EQ(CreateLlamaShardEngine(options).status().code(), StatusCode::kBadModel);

  TestEngine engine(TestEngine::FileOnly{}, {});
  options.shard_path = engine.path();
  options.numerics = NumericsMode::kExact;
  const Status exact = CreateLlamaShardEngine(options).status();
  EXPECT_EQ(exact.code(), StatusCode::kRefused);
  EXPECT_THAT(exact.message(), HasSubstr("does not cover weights of type f32"));
  options.numerics = NumericsMode::kFast;
  options.device = "nothing9";
  EXPECT_EQ(CreateLlamaShardEngine(options).status().code(), StatusCode::kBadConfiguration);
}

}  // namespace
}  // namespace meshnet
