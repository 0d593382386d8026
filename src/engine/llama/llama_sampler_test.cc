// Sampling at the tail, through the engine, on a tiny model that has a tokenizer.
#include "engine/llama/llama_sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "engine/llama/llama_handles.h"
#include "engine/llama/test_engine.h"
#include "engine/llama/token_logprobs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace meshnet {
namespace {

using testing::HasSubstr;

class LlamaSamplerTest : public testing::Test {
 protected:
  static tiny::TinyModelOptions Model() {
    tiny::TinyModelOptions model = tiny::TextModelOptions();
    model.weights = tiny::WeightType::kQ8_0;
    return model;
  }
  static EngineOptions Exact() {
    EngineOptions options = TestEngine::SmallOptions();
    options.numerics = NumericsMode::kExact;
    return options;
  }

  LlamaSamplerTest() : engine_(Model(), Exact()) {
    llama_model_params params = llama_model_default_params();
    params.vocab_only = true;
    vocab_model_.reset(llama_model_load_from_file(engine_.path().c_str(), params));
  }

  const llama_vocab* vocab() const { return llama_model_get_vocab(vocab_model_.get()); }
  std::string Piece(Token token) const {
    char text[64];
    return std::string(text, static_cast<size_t>(std::max(0, llama_token_to_piece(vocab(), token, text, sizeof text, 0, true))));
  }
  std::vector<Token> Tokenize(const std::string& text) const {
    std::vector<Token> tokens(text.size() + 4);
    tokens.resize(static_cast<size_t>(llama_tokenize(vocab(), text.data(), static_cast<int32_t>(text.size()), tokens.data(),
                                                     static_cast<int32_t>(tokens.size()), false, true)));
    return tokens;
  }

  // Prefills the prompt and then feeds back what is sampled, `count` tokens or to the end of generation.
  std::vector<SampledToken> Generate(int32_t sequence, const std::vector<Token>& prompt, SamplingParams params, size_t count) {
    params.prompt_len = PastLen(static_cast<uint32_t>(prompt.size()));
    std::vector<SampledToken> sampled;
    std::vector<Token> next = prompt;
    while (sampled.size() < count) {
      EngineOutcome outcome = engine_.Feed(sequence, next, &params, false);
      EXPECT_EQ(outcome.fate, EngineFate::kDone) << outcome.cause;
      if (outcome.sampled.size() != 1) break;
      sampled.push_back(outcome.sampled.front());
      if (sampled.back().end_of_generation) break;
      next = {sampled.back().token};
    }
    return sampled;
  }
  static std::vector<Token> TokensOf(const std::vector<SampledToken>& sampled) {
    std::vector<Token> tokens;
    for (const SampledToken& token : sampled) tokens.push_back(token.token);
    return tokens;
  }
  std::string TextOf(const std::vector<SampledToken>& sampled) const {
    std::string text;
    for (const SampledToken& token : sampled) {
      if (!token.end_of_generation) text += Piece(token.token);
    }
    return text;
  }

  Token SampleAgain(const SamplingParams& params) {
    engine_->Remove(SequenceId(0));
    return engine_.Feed(0, prompt_, &params).sampled.front().token;
  }

  static SamplingParams Hot(uint32_t seed) {
    SamplingParams params;
    params.seed = seed;
    params.temperature = 2.0f;
    params.top_k = 0;
    params.top_p = 1.0f;
    params.min_p = 0;
    params.ignore_eos = true;
    return params;
  }

  TestEngine engine_;
  LlamaModelPtr vocab_model_;
  const std::vector<Token> prompt_ = {1, 300, 301, 302, 303};
};

TEST_F(LlamaSamplerTest, GreedyTakesTheHighestLogitHoweverItIsAskedFor) {
  SamplingParams plain;
  plain.temperature = 0;
  SamplingParams chain = plain;
  chain.samplers = "kt";  // so that llama.cpp's chain runs
  EngineOutcome outcome = engine_.Feed(0, prompt_, &plain);
  ASSERT_EQ(outcome.sampled.size(), 1u);
  EXPECT_EQ(outcome.sampled.front().token, HighestToken(outcome.output.row(outcome.output.rows() - 1)));
  EXPECT_EQ(engine_.Feed(1, prompt_, &chain).sampled.front().token, outcome.sampled.front().token);
  // Logits divided by one of these are not finite any more.
  for (float temperature : {1e-45f, 1e-38f, 3e-38f, 1e-31f}) {
    SamplingParams cold = plain;
    cold.temperature = temperature;
    engine_->Remove(SequenceId(1));
    const EngineOutcome drawn = engine_.Feed(1, prompt_, &cold);
    ASSERT_EQ(drawn.fate, EngineFate::kDone) << temperature << drawn.cause;
    EXPECT_EQ(drawn.sampled.front().token, outcome.sampled.front().token) << temperature;
  }
}

TEST_F(LlamaSamplerTest, GreedyWithBiasesIsWhatTheChainWouldTake) {
  SamplingParams plain;
  plain.temperature = 0;
  const Token first = engine_.Feed(0, prompt_, &plain).sampled.front().token;
  plain.logit_bias = {{first, -INFINITY}};
  const Token second = SampleAgain(plain);
  plain.logit_bias = {{first, -0.001f}, {second, -INFINITY}, {first, -1000.0f}};
  const Token third = SampleAgain(plain);
  EXPECT_EQ(std::set({first, second, third}).size(), 3u);
  SamplingParams chain = plain;
  chain.samplers = "kt";
  EXPECT_EQ(SampleAgain(chain), third);
  plain.ignore_eos = chain.ignore_eos = true;
  EXPECT_EQ(SampleAgain(chain), SampleAgain(plain));
}

// llama.cpp draws at up to temperature + range.
TEST_F(LlamaSamplerTest, ARangeAroundTemperatureZeroIsNotGreedy) {
  SamplingParams params = Hot(0);
  params.ignore_eos = false;  // a bias would make it no plain greedy sampling anyway
  params.temperature = 0;
  params.dynatemp_range = 2;
  std::set<Token> drawn;
  for (params.seed = 0; params.seed < 8; ++params.seed) {
    drawn.insert(engine_.Feed(0, prompt_, &params).sampled.front().token);
    engine_->Remove(SequenceId(0));
  }
  EXPECT_GT(drawn.size(), 1u);
}

TEST_F(LlamaSamplerTest, SeedAndPositionDecideTheDraw) {
  const std::vector<Token> first = TokensOf(Generate(0, prompt_, Hot(5), 24));
  EXPECT_EQ(TokensOf(Generate(1, prompt_, Hot(5), 24)), first);
  EXPECT_NE(TokensOf(Generate(2, prompt_, Hot(6), 24)), first);
}

TEST_F(LlamaSamplerTest, APositionThatIsComputedAgainDrawsTheSame) {
  SamplingParams params = Hot(5);
  params.repeat_penalty = 1.3f;
  params.presence_penalty = 0.5f;
  params.dry_multiplier = 0.8f;
  const std::vector<Token> answer = TokensOf(Generate(0, prompt_, params, 24));
  params.prompt_len = PastLen(static_cast<uint32_t>(prompt_.size()));
  // Back to the middle of the answer, then the same token again.
  const auto middle = static_cast<uint32_t>(prompt_.size() + 10);
  ASSERT_TRUE(engine_->Truncate(SequenceId(0), PastLen(middle)));
  EXPECT_EQ(engine_.Feed(0, {answer[10]}, &params).sampled.front().token, answer[11]);
  // Elsewhere, prefilled at once: penalties are rebuilt from the log.
  std::vector<Token> all = prompt_;
  all.insert(all.end(), answer.begin(), answer.begin() + 15);
  EXPECT_EQ(engine_.Feed(1, all, &params).sampled.front().token, answer[15]);
}

TEST_F(LlamaSamplerTest, ChangedParametersCountFromTheNextStep) {
  SamplingParams params;
  params.temperature = 0;
  const Token unbiased = engine_.Feed(0, prompt_, &params).sampled.front().token;
  params.logit_bias = {{unbiased, -INFINITY}};
  ASSERT_TRUE(engine_->Truncate(SequenceId(0), PastLen(static_cast<uint32_t>(prompt_.size() - 1))));
  EXPECT_NE(engine_.Feed(0, {prompt_.back()}, &params).sampled.front().token, unbiased);
}

TEST_F(LlamaSamplerTest, AGrammarForcesItsTextAndThePromptIsNotPartOfIt) {
  SamplingParams params = Hot(3);
  params.ignore_eos = false;
  params.grammar = "root ::= \"{\\\"answer\\\": \" (\"yes\" | \"no\") \"}\"";
  const std::vector<SampledToken> sampled = Generate(0, Tokenize("What is it? Say anything"), params, 40);
  EXPECT_THAT(TextOf(sampled), testing::AnyOf("{\"answer\": yes}", "{\"answer\": no}"));
  EXPECT_TRUE(sampled.back().end_of_generation);
}

TEST_F(LlamaSamplerTest, ALazyGrammarWaitsForItsTrigger) {
  SamplingParams params = Hot(3);
  params.grammar = "root ::= \"call\" \"(1)\"+";
  params.grammar_type = 3;
  params.grammar_lazy = true;
  params.grammar_triggers = {{1, "call", -1}};
  params.prompt_len = PastLen(2);
  EXPECT_EQ(engine_.Feed(0, {1, 300}, &params).fate, EngineFate::kDone);
  const std::vector<Token> free_text = Tokenize("anything at all ");
  EXPECT_EQ(engine_.Feed(0, free_text, &params).fate, EngineFate::kDone);
  std::vector<Token> next = Tokenize("call");
  std::string text;
  for (int i = 0; i < 12; ++i) {
    EngineOutcome outcome = engine_.Feed(0, next, &params);
    ASSERT_EQ(outcome.sampled.size(), 1u) << outcome.cause;
    next = {outcome.sampled.front().token};
    text += Piece(next.front());
  }
  EXPECT_EQ(text.find_first_not_of("(1)"), std::string::npos) << text;
}

TEST_F(LlamaSamplerTest, ATokenThatDoesNotFitTheGrammarIsRefusedAndCostsNothing) {
  SamplingParams params = Hot(3);
  params.grammar = "root ::= [a-c]+";
  params.prompt_len = PastLen(static_cast<uint32_t>(prompt_.size()));
  ASSERT_EQ(engine_.Feed(0, prompt_, &params).fate, EngineFate::kDone);
  const EngineOutcome outcome = engine_.Feed(0, Tokenize("xyz"), &params);
  EXPECT_EQ(outcome.fate, EngineFate::kRolledBack);
  EXPECT_THAT(outcome.cause, HasSubstr("does not fit the session's grammar"));
  EXPECT_EQ(engine_.past_len(0), PastLen(static_cast<uint32_t>(prompt_.size())));
  // llama.cpp aborts when a grammar that is not at its end is given an end of generation.
  const Token end = llama_vocab_eos(vocab());
  EXPECT_EQ(engine_.Feed(0, {end}, &params).fate, EngineFate::kRolledBack);
  EXPECT_EQ(engine_.Feed(0, {end}, nullptr).fate, EngineFate::kDone);
}

TEST_F(LlamaSamplerTest, AGrammarThatLeavesNoTokenRollsBack) {
  SamplingParams params = Hot(3);
  params.grammar = "root ::= \"a\" <[5]>";
  params.prompt_len = PastLen(static_cast<uint32_t>(prompt_.size()));
  for (Token token = 0; token < llama_vocab_n_tokens(vocab()); ++token) {
    if (Piece(token).starts_with("a")) params.logit_bias.push_back({token, -INFINITY});
  }
  const EngineOutcome outcome = engine_.Feed(0, prompt_, &params);
  EXPECT_EQ(outcome.fate, EngineFate::kRolledBack);
  EXPECT_THAT(outcome.cause, HasSubstr("leave no token"));
  EXPECT_TRUE(outcome.asked_too_much);
  EXPECT_EQ(engine_.past_len(0), PastLen(0));
}

TEST_F(LlamaSamplerTest, AReasoningBudgetForcesItsEnd) {
  SamplingParams params = Hot(3);
  params.reasoning_budget_start = {400};
  params.reasoning_budget_end = {{401}};
  params.reasoning_budget_forced = {402, 401};
  params.reasoning_budget_tokens = 3;
  params.prompt_len = PastLen(1);
  ASSERT_EQ(engine_.Feed(0, {1}, &params).fate, EngineFate::kDone);
  std::vector<Token> fed = {400, 350, 351, 352};
  EXPECT_EQ(engine_.Feed(0, fed, &params).sampled.front().token, 402);
  EXPECT_EQ(engine_.Feed(0, {402}, &params).sampled.front().token, 401);
}

TEST_F(LlamaSamplerTest, LogprobsAreOfTheWholeVocabularyBeforeTheChain) {
  SamplingParams params = Hot(9);
  params.top_k = 3;
  params.logprobs = 5;
  const EngineOutcome outcome = engine_.Feed(0, prompt_, &params);
  const SampledToken& sampled = outcome.sampled.front();
  ASSERT_EQ(sampled.top.size(), 5u);
  const TokenLogprobs expected = LogprobsOf(outcome.output.row(outcome.output.rows() - 1), sampled.token, 5);
  EXPECT_EQ(sampled.logprob, expected.of_token);
  EXPECT_EQ(sampled.top, expected.top);

  params.post_sampling_probs = true;
  const EngineOutcome after = engine_.Feed(1, prompt_, &params);
  ASSERT_EQ(after.sampled.front().top.size(), 3u);  // what top-k left
  double sum = 0;
  for (const TokenLogprob& token : after.sampled.front().top) sum += std::exp(token.logprob);
  EXPECT_NEAR(sum, 1.0, 1e-5);
  EXPECT_EQ(after.sampled.front().token, sampled.token);
}

TEST_F(LlamaSamplerTest, HostileParametersAreRefusedBeforeAnyStep) {
  std::string deep = "root ::= ";
  deep.append(60000, '(');
  struct Case {
    std::string name;
    std::function<void(SamplingParams&)> change;
  };
  const std::vector<Case> cases = {
      {"sixty thousand parentheses", [&](SamplingParams& p) { p.grammar = deep; }},
      {"llguidance", [](SamplingParams& p) { p.grammar = "%llguidance {}"; }},
      {"unknown token", [](SamplingParams& p) { p.grammar = "root ::= <not a token at all>"; }},
      // llama.cpp's tokenizers recurse along a run: 30,000 letters end a usual stack.
      {"long token", [](SamplingParams& p) { p.grammar = "root ::= <" + std::string(60000, 'a') + ">"; }},
      {"a run in the generation prompt", [](SamplingParams& p) { p.generation_prompt = std::string(60000, 'a'); }},
      {"zero byte in the generation prompt", [](SamplingParams& p) { p.generation_prompt = std::string(1, '\0'); }},
      {"mirostat 3", [](SamplingParams& p) { p.mirostat = 3; }},
      {"repeat penalty 0", [](SamplingParams& p) { p.repeat_penalty = 0; }},
      {"trigger type 8", [](SamplingParams& p) { p.grammar = "root ::= \"a\"", p.grammar_lazy = true, p.grammar_triggers = {{8, "a", 0}}; }},
      {"broken pattern", [](SamplingParams& p) { p.grammar = "root ::= \"a\"", p.grammar_lazy = true, p.grammar_triggers = {{2, "(a", -1}}; }},
      {"exponential pattern", [](SamplingParams& p) { p.grammar = "root ::= \"a\"", p.grammar_lazy = true, p.grammar_triggers = {{2, R"(\s*\s*\s*\s*x)", -1}}; }},
      {"recursive pattern", [](SamplingParams& p) { p.grammar = "root ::= \"a\"", p.grammar_lazy = true, p.grammar_triggers = {{2, R"(\w*x)", -1}}; }},
      {"empty word", [](SamplingParams& p) { p.grammar = "root ::= \"a\"", p.grammar_lazy = true, p.grammar_triggers = {{1, "", -1}}; }},
      {"bias of no token", [](SamplingParams& p) { p.logit_bias = {{1 << 30, 1}}; }},
      {"bias that overflows", [](SamplingParams& p) { p.logit_bias = {{5, 1e9f}}; }},
      {"biases that add up", [](SamplingParams& p) { p.logit_bias = {{5, 7e5f}, {6, 1}, {5, 7e5f}}; }},
      {"infill over the vocabulary", [](SamplingParams& p) { p.samplers = "i"; }},
      {"infill in front of top_k", [](SamplingParams& p) { p.samplers = "ik"; }},
      {"infill over many", [](SamplingParams& p) { p.samplers = "ki", p.top_k = 10000; }},
      {"generation prompt against the grammar",
       [](SamplingParams& p) { p.grammar = "root ::= \"a\"", p.grammar_type = 2, p.generation_prompt = "zzz"; }},
      {"end of generation in the generation prompt",
       [&](SamplingParams& p) { p.grammar = "root ::= .*", p.grammar_type = 2, p.generation_prompt = Piece(llama_vocab_eos(vocab())); }},
  };
  for (const Case& row : cases) {
    SamplingParams params;
    row.change(params);
    const Status status = engine_->CheckSampling(params);
    EXPECT_EQ(status.code(), StatusCode::kRefused) << row.name;
    EXPECT_LT(status.message().size(), 200u) << row.name;
    EXPECT_EQ(engine_.Feed(0, prompt_, &params).fate, EngineFate::kRolledBack) << row.name;
  }
  EXPECT_TRUE(engine_->CheckSampling(SamplingParams()).ok());
  EXPECT_EQ(engine_.past_len(0), PastLen(0));
}

TEST_F(LlamaSamplerTest, EveryKindOfSamplerRuns) {
  for (const char* samplers : {"edskypmxt", "kpt", "x", "a", "ma", "ki", "t"}) {
    SamplingParams params = Hot(2);
    params.samplers = samplers;
    if (params.samplers.starts_with("k")) params.top_k = 40;
    params.xtc_probability = 0.5f;
    params.typical_p = 0.9f;
    params.top_n_sigma = 1.0f;
    params.adaptive_target = 0.3f;
    ASSERT_TRUE(engine_->CheckSampling(params).ok()) << samplers;
    EXPECT_GE(Generate(0, prompt_, params, 3).size(), 1u) << samplers;  // infill may end at once
    engine_->Remove(SequenceId(0));
  }
  for (int32_t mirostat : {1, 2}) {
    SamplingParams params = Hot(2);
    params.mirostat = mirostat;
    EXPECT_EQ(Generate(0, prompt_, params, 3).size(), 3u);
    engine_->Remove(SequenceId(0));
  }
}

TEST(LlamaSamplerWithoutTokenizerTest, RefusesWhatNeedsText) {
  TestEngine engine;
  SamplingParams params;
  EXPECT_TRUE(engine->CheckSampling(params).ok());
  EXPECT_EQ(engine.Feed(0, {1, 2, 3}, &params).sampled.size(), 1u);
  params.grammar = "root ::= \"a\"";
  EXPECT_THAT(engine->CheckSampling(params).message(), HasSubstr("need a tokenizer"));
  params.grammar.clear();
  params.dry_multiplier = 0.5f;
  EXPECT_THAT(engine->CheckSampling(params).message(), HasSubstr("need a tokenizer"));
}

}  // namespace
}  // namespace meshnet
