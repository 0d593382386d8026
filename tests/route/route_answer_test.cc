// Undisturbed answers through one, two and three stages: the text is that of the model, whatever the cuts, chunks and truncation class.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cluster.h"

namespace meshnet {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

TEST(RouteAnswerTest, TheTextIsTheModelsThroughAnyCut) {
  for (const std::vector<uint32_t>& cuts : {std::vector<uint32_t>{}, {3}, {1}, {2, 4}, {1, 2, 3, 4, 5}}) {
    for (TruncationClass truncation_class : {TruncationClass::kFull, TruncationClass::kWindow, TruncationClass::kWhole}) {
      for (uint32_t chunk : {1u, 7u, 16u}) {
        SCOPED_TRACE(std::to_string(cuts.size() + 1) + " stages, " + Name(truncation_class) + ", chunks of " + std::to_string(chunk));
        ClusterOptions options;
        options.cuts = cuts;
        options.truncation_class = truncation_class;
        options.window_tokens = 8;
        Cluster cluster(options);
        DriverOptions driver;
        driver.chunk_rows = chunk;
        DrivenSession session(*cluster.route, cluster.clock, driver, "owner");
        const std::vector<Token> prompt = SomeTokens(1, 50);
        const Told told = Ask(session, prompt, 20, Lively(7));
        EXPECT_EQ(told.tokens, FakeAnswer(options.model, prompt, 20, Lively(7)));
        EXPECT_EQ(told.report().end, AnswerEnd::kLength);
        session.Release(seconds(30));
        EXPECT_EQ(cluster.Leftovers(), "");
      }
    }
  }
}

TEST(RouteAnswerTest, EndsWithTheModelsEnd) {
  ClusterOptions options;
  options.model.end_of_generation_tokens = {3};
  options.model.answer_tokens = 9;
  Cluster cluster(options);
  DrivenSession session(*cluster.route, cluster.clock, {}, "owner");
  const std::vector<Token> prompt = SomeTokens(2, 5);
  const Told told = Ask(session, prompt, 100, Lively(1));
  EXPECT_EQ(told.report().end, AnswerEnd::kEndOfGeneration);
  EXPECT_EQ(told.tokens, FakeAnswer(options.model, prompt, 100, Lively(1)));
  EXPECT_EQ(told.tokens.back(), 3);
}

// A chat of several turns whose prompts share more or less of what came before; each class reuses what it can and never says anything else.
TEST(RouteAnswerTest, ATurnReusesWhatItsClassAllows) {
  for (TruncationClass truncation_class : {TruncationClass::kFull, TruncationClass::kWindow, TruncationClass::kWhole}) {
    SCOPED_TRACE(Name(truncation_class));
    ClusterOptions options;
    options.truncation_class = truncation_class;
    options.window_tokens = 8;
    Cluster cluster(options);
    DrivenSession session(*cluster.route, cluster.clock, {}, "owner");
    std::vector<Token> prompt = SomeTokens(3, 40);
    Told told = Ask(session, prompt, 10, Lively(1));
    EXPECT_EQ(told.report().cached_tokens, 0u);

    // Goes on where the answer ended: every class keeps all that was computed.
    prompt.insert(prompt.end(), told.tokens.begin(), told.tokens.end());
    for (Token token : SomeTokens(4, 5)) prompt.push_back(token);
    told = Ask(session, prompt, 10, Lively(2));
    EXPECT_EQ(told.tokens, FakeAnswer(options.model, prompt, 10, Lively(2)));
    EXPECT_EQ(told.report().cached_tokens, 49u);

    // The same prompt again: the last token has to be computed once more, ten after it go.
    told = Ask(session, prompt, 10, Lively(3));
    EXPECT_EQ(told.tokens, FakeAnswer(options.model, prompt, 10, Lively(3)));
    EXPECT_EQ(told.report().cached_tokens, truncation_class == TruncationClass::kFull ? 54u : 0u);

    // Far back: the window is gone, a recurrent state never goes back.
    prompt.resize(20);
    prompt.push_back(1);
    told = Ask(session, prompt, 10, Lively(4));
    EXPECT_EQ(told.tokens, FakeAnswer(options.model, prompt, 10, Lively(4)));
    EXPECT_EQ(told.report().cached_tokens, truncation_class == TruncationClass::kFull ? 20u : 0u);
    EXPECT_EQ(told.report().replays, 0u);
    EXPECT_EQ(session.epoch(), Epoch(1));
    session.Release(seconds(30));
    EXPECT_EQ(cluster.Leftovers(), "");
  }
}

TEST(RouteAnswerTest, FillsTheContextToItsLastToken) {
  ClusterOptions options;
  options.context_tokens = 64;
  options.budget_tokens = 256;
  Cluster cluster(options);
  DrivenSession session(*cluster.route, cluster.clock, {}, "owner");
  const std::vector<Token> prompt = SomeTokens(5, 50);
  const Told told = Ask(session, prompt, 0, Lively(1));
  EXPECT_EQ(told.report().end, AnswerEnd::kLength);
  EXPECT_EQ(told.tokens, FakeAnswer(options.model, prompt, 15, Lively(1)));  // 64 are computed, the last of them gives one more
  const Told too_long = Ask(session, SomeTokens(6, 65), 1, Lively(1));
  EXPECT_EQ(std::get<AnswerFailure>(too_long.result).kind, AnswerFailure::Kind::kContextExceeded);
  EXPECT_EQ(Ask(session, SomeTokens(6, 64), 0, Lively(1)).tokens.size(), 1u);
}

TEST(RouteAnswerTest, ABadGrammarOrTokenIsTheCallersFault) {
  Cluster cluster({});
  DrivenSession session(*cluster.route, cluster.clock, {}, "owner");
  SamplingParams sampling;
  sampling.grammar = std::string(kFakeBadGrammar);
  Told told = Ask(session, SomeTokens(1, 30), 5, sampling);
  EXPECT_EQ(std::get<AnswerFailure>(told.result).kind, AnswerFailure::Kind::kBadRequest);
  EXPECT_THAT(std::get<AnswerFailure>(told.result).message, HasSubstr("[4,6)"));
  told = Ask(session, {1, 2, 100000}, 5, Lively(1));
  EXPECT_EQ(std::get<AnswerFailure>(told.result).kind, AnswerFailure::Kind::kBadRequest);
  const std::vector<Token> prompt = SomeTokens(1, 30);
  EXPECT_EQ(Ask(session, prompt, 5, Lively(1)).tokens, FakeAnswer({}, prompt, 5, Lively(1)));
}

TEST(RouteAnswerTest, RawLogitsDoNotDependOnTheCut) {
  std::vector<std::vector<float>> seen;
  for (const std::vector<uint32_t>& cuts : {std::vector<uint32_t>{}, {2, 4}}) {
    ClusterOptions options;
    options.cuts = cuts;
    Cluster cluster(options);
    DrivenSession session(*cluster.route, cluster.clock, {}, "owner");
    std::vector<float> all;
    for (uint32_t count : {13u, 1u, 1u, 16u}) {
      auto logits = session.ForwardLogits(SomeTokens(count, count));
      ASSERT_TRUE(std::holds_alternative<HiddenState>(logits)) << std::get<AnswerFailure>(logits).message;
      EXPECT_EQ(std::get<HiddenState>(logits).rows(), count);
      const auto values = std::get<HiddenState>(logits).values();
      all.insert(all.end(), values.begin(), values.end());
    }
    EXPECT_EQ(session.past_len(), PastLen(31));
    seen.push_back(std::move(all));
  }
  EXPECT_EQ(seen[0], seen[1]);
}

}  // namespace
}  // namespace meshnet
