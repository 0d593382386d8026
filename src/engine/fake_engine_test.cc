#include "engine/fake_engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace meshnet {
namespace {

std::vector<Token> Prompt(size_t count) {
  std::vector<Token> tokens;
  for (size_t i = 0; i < count; ++i) tokens.push_back(static_cast<Token>((i * 37 + 5) % 1000));
  return tokens;
}

// Stages of one model, driven like a route: the output of one is the input of the next.
class Chain {
 public:
  explicit Chain(std::vector<LayerRange> ranges, FakeEngineOptions options = {}) {
    for (LayerRange range : ranges) {
      options.range = range;
      stages_.push_back(std::make_unique<FakeEngine>(options));
    }
  }

  std::optional<SampledToken> Step(int32_t sequence, std::span<const Token> tokens, const SamplingParams* sampling) {
    std::optional<SampledToken> sampled;
    HiddenState between;
    for (size_t i = 0; i < stages_.size(); ++i) {
      EngineStep step{.sequence = SequenceId(sequence), .start = stages_[i]->past_len(SequenceId(sequence)), .tokens = tokens};
      if (i > 0) step.input = &between;
      if (i + 1 == stages_.size()) step.sampling = sampling;
      std::vector<EngineOutcome> outcomes = stages_[i]->Run(std::span(&step, 1));
      EXPECT_EQ(outcomes.at(0).fate, EngineFate::kDone) << outcomes[0].cause;
      if (!outcomes[0].sampled.empty()) sampled = outcomes[0].sampled[0];
      between = std::move(outcomes[0].output);
    }
    return sampled;
  }

  std::vector<Token> Answer(int32_t sequence, std::span<const Token> prompt, size_t chunk, uint32_t tokens_max, SamplingParams sampling) {
    sampling.prompt_len = PastLen(static_cast<uint32_t>(prompt.size()));
    std::optional<SampledToken> next;
    for (size_t at = 0; at < prompt.size(); at += chunk) {
      const bool last = at + chunk >= prompt.size();
      next = Step(sequence, prompt.subspan(at, std::min(chunk, prompt.size() - at)), last ? &sampling : nullptr);
    }
    std::vector<Token> answer;
    while (true) {
      answer.push_back(next->token);
      if (next->end_of_generation || answer.size() == tokens_max) return answer;
      next = Step(sequence, std::span(&answer.back(), 1), &sampling);
    }
  }

  FakeEngine& stage(size_t index) { return *stages_[index]; }

 private:
  std::vector<std::unique_ptr<FakeEngine>> stages_;
};

EngineOutcome RunChunk(FakeEngine& engine, int32_t sequence, std::vector<Token> tokens, const SamplingParams* sampling = nullptr) {
  EngineStep step{.sequence = SequenceId(sequence), .start = engine.past_len(SequenceId(sequence)), .tokens = tokens, .sampling = sampling};
  return std::move(engine.Run(std::span(&step, 1)).at(0));
}

TEST(FakeEngineTest, AnswersDependOnNeitherCutsNorChunks) {
  const std::vector<Token> prompt = Prompt(23);
  SamplingParams sampling;
  sampling.seed = 7;
  const std::vector<Token> expected = FakeAnswer(FakeModel(), prompt, 12, sampling);
  ASSERT_EQ(expected.size(), 12u);
  const std::vector<std::vector<LayerRange>> cuts = {{{0, 6}}, {{0, 1}, {1, 6}}, {{0, 2}, {2, 3}, {3, 6}}};
  for (const std::vector<LayerRange>& ranges : cuts) {
    for (size_t chunk : {1u, 4u, 23u}) {
      Chain chain(ranges);
      EXPECT_EQ(chain.Answer(0, prompt, chunk, 12, sampling), expected) << ranges.size() << " stages, chunks of " << chunk;
    }
  }
}

TEST(FakeEngineTest, EveryTokenAndItsPlaceChangeTheAnswer) {
  const std::vector<Token> prompt = Prompt(8);
  const FakeState expected = FakeLastState(FakeModel(), prompt);
  for (size_t i = 0; i < prompt.size(); ++i) {
    std::vector<Token> other = prompt;
    other[i] += 1;
    EXPECT_NE(FakeLastState(FakeModel(), other), expected) << "token " << i << " changed";
    other = prompt;
    other.erase(other.begin() + static_cast<ptrdiff_t>(i));
    EXPECT_NE(FakeLastState(FakeModel(), other), expected) << "token " << i << " skipped";
    other = prompt;
    other.insert(other.begin() + static_cast<ptrdiff_t>(i), prompt[i]);
    EXPECT_NE(FakeLastState(FakeModel(), other), expected) << "token " << i << " doubled";
    if (i > 0) {
      other = prompt;
      std::swap(other[i - 1], other[i]);
      EXPECT_NE(FakeLastState(FakeModel(), other), expected) << "tokens " << i - 1 << " and " << i << " swapped";
    }
  }
}

TEST(FakeEngineTest, OneChangedInputValueChangesTheOutput) {
  FakeEngineOptions options;
  options.range = {2, 4};
  FakeEngine engine(options);
  std::vector<float> values(8, 0.25f);
  auto output = [&] {
    HiddenState input(1, 8, values);
    const Token token = 3;
    EngineStep step{.sequence = SequenceId(0), .start = PastLen(0), .tokens = std::span(&token, 1), .input = &input};
    EngineOutcome outcome = std::move(engine.Run(std::span(&step, 1))[0]);
    engine.Remove(SequenceId(0));
    return std::vector<float>(outcome.output.values().begin(), outcome.output.values().end());
  };
  const std::vector<float> before = output();
  EXPECT_EQ(output(), before) << "a removed sequence leaves nothing behind";
  values[5] = std::nextafter(0.25f, 1.0f);
  EXPECT_NE(output(), before);
}

TEST(FakeEngineTest, NeighboursInABatchDoNotMeet) {
  SamplingParams sampling;
  Chain alone({{0, 6}}), shared({{0, 6}});
  for (int32_t sequence : {0, 1, 2}) {
    std::vector<Token> prompt = Prompt(static_cast<size_t>(4 + sequence));
    alone.Step(sequence, prompt, nullptr);
    shared.Step(sequence, prompt, nullptr);
  }
  const std::vector<Token> next = {11, 12, 13};
  std::vector<EngineStep> batch;
  for (int32_t sequence : {0, 1, 2}) {
    const size_t i = static_cast<size_t>(sequence);
    batch.push_back({.sequence = SequenceId(sequence), .start = PastLen(4 + static_cast<uint32_t>(sequence)),
                     .tokens = std::span(&next[i], 1), .sampling = &sampling});
  }
  const std::vector<EngineOutcome> outcomes = shared.stage(0).Run(batch);
  for (int32_t sequence : {0, 1, 2}) {
    const size_t i = static_cast<size_t>(sequence);
    EXPECT_EQ(outcomes[i].sampled.at(0), alone.Step(sequence, std::span(&next[i], 1), &sampling));
  }
}

TEST(FakeEngineTest, TheLargestLogitIsTheGreedyToken) {
  FakeEngine engine(FakeEngineOptions{});
  SamplingParams greedy;
  greedy.temperature = 0;
  greedy.logprobs_wanted = true;
  greedy.logprobs = 3;
  const std::vector<Token> prompt = Prompt(5);
  EngineStep step{.sequence = SequenceId(0), .start = PastLen(0), .tokens = prompt, .rows = RowsWanted::kAll, .logits_wanted = true,
                  .sampling = &greedy};
  const EngineOutcome outcome = std::move(engine.Run(std::span(&step, 1))[0]);
  ASSERT_EQ(outcome.output.rows(), 5u);
  ASSERT_EQ(outcome.output.width(), 1000u);
  EXPECT_TRUE(outcome.output.all_finite());
  const std::span<const float> last = outcome.output.row(4);
  EXPECT_EQ(std::ranges::max_element(last) - last.begin(), outcome.sampled.at(0).token);
  EXPECT_EQ(outcome.sampled[0].top.size(), 3u);
  EXPECT_EQ(outcome.sampled[0].top[0].token, outcome.sampled[0].token);
  EXPECT_EQ(outcome.sampled[0].logprob, outcome.sampled[0].top[0].logprob);
  EXPECT_LT(*outcome.sampled[0].logprob, 0.0f);
}

TEST(FakeEngineTest, RowsComeBackAsWanted) {
  FakeEngineOptions options;
  options.range = {0, 3};
  FakeEngine engine(options);
  const std::vector<Token> prompt = Prompt(4);
  std::vector<float> last_row;
  for (RowsWanted rows : {RowsWanted::kAll, RowsWanted::kLast, RowsWanted::kNone}) {
    EngineStep step{.sequence = SequenceId(0), .start = PastLen(0), .tokens = prompt, .rows = rows};
    const EngineOutcome outcome = std::move(engine.Run(std::span(&step, 1))[0]);
    const uint32_t expected = rows == RowsWanted::kAll ? 4 : rows == RowsWanted::kLast ? 1 : 0;
    ASSERT_EQ(outcome.output.rows(), expected);
    if (expected > 0) {
      const std::span<const float> row = outcome.output.row(expected - 1);
      if (last_row.empty()) last_row.assign(row.begin(), row.end());
      EXPECT_TRUE(std::ranges::equal(row, last_row));
    }
    engine.Remove(SequenceId(0));
  }
}

TEST(FakeEngineTest, SeedAndPositionChooseTheTokenAndGreedyIgnoresThem) {
  const FakeModel model;
  SamplingParams first, second;
  second.seed = 1;
  EXPECT_NE(FakeAnswer(model, Prompt(9), 8, first), FakeAnswer(model, Prompt(9), 8, second));
  first.temperature = second.temperature = 0;
  EXPECT_EQ(FakeAnswer(model, Prompt(9), 8, first), FakeAnswer(model, Prompt(9), 8, second));
}

TEST(FakeEngineTest, AnAnswerEndsWhereTheModelSays) {
  FakeModel model;
  model.end_of_generation_tokens = {2};
  model.answer_tokens = 5;
  const std::vector<Token> answer = FakeAnswer(model, Prompt(9), 100, {});
  ASSERT_EQ(answer.size(), 5u);
  EXPECT_EQ(answer.back(), 2);
  SamplingParams sampling;
  sampling.ignore_eos = true;
  const std::vector<Token> longer = FakeAnswer(model, Prompt(9), 100, sampling);
  EXPECT_EQ(longer.size(), 100u);
  EXPECT_EQ(std::ranges::count(longer, 2), 0);
}

TEST(FakeEngineTest, TruncationGoesBackToTheSameState) {
  FakeEngine engine(FakeEngineOptions{});
  SamplingParams sampling;
  RunChunk(engine, 3, Prompt(10));
  ASSERT_TRUE(engine.Truncate(SequenceId(3), PastLen(4)));
  EXPECT_EQ(engine.past_len(SequenceId(3)), PastLen(4));
  const EngineOutcome outcome = RunChunk(engine, 3, {99}, &sampling);
  std::vector<Token> prefix = Prompt(4);
  prefix.push_back(99);
  EXPECT_EQ(outcome.sampled.at(0), FakeSample(FakeModel(), FakeLastState(FakeModel(), prefix), 5, sampling));
}

struct TruncationRow {
  const char* name;
  TruncationClass truncation_class;
  uint32_t past;
  uint32_t keep;
  bool proven;
};

TEST(FakeEngineTest, EachClassProvesOnlyTheTruncationsItCanKeep) {
  // Window 4, slack 3: once 7 positions are passed the oldest cells are recycled.
  const TruncationRow rows[] = {
      {"full keeps any length", TruncationClass::kFull, 20, 3, true},
      {"nothing keeps more than there is", TruncationClass::kFull, 20, 21, false},
      {"window before recycling", TruncationClass::kWindow, 7, 1, true},
      {"window still intact", TruncationClass::kWindow, 20, 17, true},
      {"window just broken", TruncationClass::kWindow, 20, 16, false},
      {"window to nothing", TruncationClass::kWindow, 20, 0, true},
      {"window to where it is", TruncationClass::kWindow, 20, 20, true},
      {"whole to nothing", TruncationClass::kWhole, 20, 0, true},
      {"whole to where it is", TruncationClass::kWhole, 20, 20, true},
      {"whole by one", TruncationClass::kWhole, 20, 19, false},
  };
  for (const TruncationRow& row : rows) {
    SCOPED_TRACE(row.name);
    FakeEngineOptions options;
    options.truncation_class = row.truncation_class;
    options.window_tokens = 4;
    options.window_slack_tokens = 3;
    FakeEngine engine(options);
    RunChunk(engine, 0, Prompt(row.past));
    EXPECT_EQ(engine.Truncate(SequenceId(0), PastLen(row.keep)), row.proven);
    if (row.proven) {
      EXPECT_EQ(engine.past_len(SequenceId(0)), PastLen(row.keep));
    } else {
      EXPECT_EQ(RunChunk(engine, 0, {1}).fate, EngineFate::kLost) << "an unproven truncation leaves nothing to go on with";
    }
    engine.Remove(SequenceId(0));
    EXPECT_EQ(RunChunk(engine, 0, {1}).fate, EngineFate::kDone);
  }
}

TEST(FakeEngineTest, InjectedFaultsStrikeOnceAndOnlyTheirSequence) {
  FakeEngine engine(FakeEngineOptions{});
  RunChunk(engine, 0, Prompt(3));
  RunChunk(engine, 1, Prompt(3));
  engine.Inject({.kind = FakeFault::Kind::kRolledBack, .sequence = SequenceId(1)});
  const std::vector<Token> next = {5, 6};
  std::vector<EngineStep> batch = {
      {.sequence = SequenceId(0), .start = PastLen(3), .tokens = std::span(&next[0], 1)},
      {.sequence = SequenceId(1), .start = PastLen(3), .tokens = std::span(&next[1], 1)},
  };
  std::vector<EngineOutcome> outcomes = engine.Run(batch);
  EXPECT_EQ(outcomes[0].fate, EngineFate::kDone);
  EXPECT_EQ(outcomes[1].fate, EngineFate::kRolledBack);
  EXPECT_EQ(engine.past_len(SequenceId(1)), PastLen(3));
  EXPECT_EQ(RunChunk(engine, 1, {6}).fate, EngineFate::kDone);

  engine.Inject({.kind = FakeFault::Kind::kNonFinite});
  EXPECT_EQ(RunChunk(engine, 0, {7}).fate, EngineFate::kLost);
  engine.Inject({.kind = FakeFault::Kind::kTruncateFails});
  EXPECT_FALSE(engine.Truncate(SequenceId(1), PastLen(1)));
}

TEST(FakeEngineTest, AFullBudgetRollsBackAndAnInfiniteInputLosesTheSequence) {
  FakeEngineOptions options;
  options.budget_tokens = 6;
  options.range = {1, 3};
  FakeEngine engine(options);
  auto run = [&](float value) {
    HiddenState input(4, 8, std::vector<float>(32, value));
    const std::vector<Token> tokens = Prompt(4);
    EngineStep step{.sequence = SequenceId(0), .start = engine.past_len(SequenceId(0)), .tokens = tokens, .input = &input};
    return engine.Run(std::span(&step, 1))[0].fate;
  };
  EXPECT_EQ(run(0.5f), EngineFate::kDone);
  EXPECT_EQ(run(0.5f), EngineFate::kRolledBack);
  EXPECT_EQ(engine.past_len(SequenceId(0)), PastLen(4));
  EXPECT_EQ(run(std::numeric_limits<float>::infinity()), EngineFate::kLost);
}

TEST(FakeEngineTest, TheHookSeesEachCallAndOneGrammarIsRefused) {
  std::vector<size_t> sizes;
  FakeEngineOptions options;
  options.on_run = [&](std::span<const EngineStep> steps) { sizes.push_back(steps.size()); };
  FakeEngine engine(options);
  RunChunk(engine, 0, Prompt(3));
  EXPECT_EQ(sizes, std::vector<size_t>{1});
  EXPECT_EQ(engine.counts().tokens, 3u);
  SamplingParams sampling;
  EXPECT_TRUE(engine.CheckSampling(sampling).ok());
  sampling.grammar = kFakeBadGrammar;
  EXPECT_EQ(engine.CheckSampling(sampling).code(), StatusCode::kRefused);
}

TEST(FakeEngineDeathTest, AbortsOnTheCallersMistakes) {
  FakeEngine engine(FakeEngineOptions{});
  RunChunk(engine, 0, Prompt(3));
  const std::vector<Token> tokens = Prompt(2);
  EngineStep wrong_start{.sequence = SequenceId(0), .start = PastLen(2), .tokens = tokens};
  EXPECT_DEATH(engine.Run(std::span(&wrong_start, 1)), "start == past_len");
  EXPECT_DEATH(engine.Remove(SequenceId(-1)), "sequence.value >= 0");
  EXPECT_DEATH(engine.Remove(SequenceId(8)), "sessions_max");
}

}  // namespace
}  // namespace meshnet
