// The tail's sampler with a lazy grammar, token for token against llama.cpp's own.
#include <random>
#include <string>
#include <vector>

#include "engine/llama/llama_handles.h"
#include "engine/llama/llama_sampler.h"
#include "gtest/gtest.h"
#include "sampling.h"
#include "tiny/test_folder.h"
#include "tiny/tiny_model.h"

namespace meshnet {
namespace {

constexpr Token kThink = 400, kThought = 401;

class TriggerWatchTest : public testing::Test {
 protected:
  TriggerWatchTest() {
    EXPECT_TRUE(tiny::WriteTinyModel(tiny::TextModelOptions(), folder_.File("model.gguf")).ok());
    llama_model_params params = llama_model_default_params();
    params.vocab_only = true;
    model_.reset(llama_model_load_from_file(folder_.File("model.gguf").c_str(), params));
  }

  std::vector<Token> Tokenize(const std::string& text) const { return common_tokenize(llama_model_get_vocab(model_.get()), text, false, true); }

  static SamplingParams Lazy(std::vector<GrammarTrigger> triggers, const std::string& grammar) {
    SamplingParams params;
    params.grammar = grammar;
    params.grammar_type = 3;
    params.grammar_lazy = true;
    params.grammar_triggers = std::move(triggers);
    return params;
  }
  static SamplingParams Thinking(SamplingParams params) {
    params.reasoning_budget_start = {kThink};
    params.reasoning_budget_end = {{kThought}, {300, kThought}};
    params.reasoning_budget_forced = {kThought};
    return params;
  }

  // Tokens that are accepted before one does not fit.
  size_t OursTakes(const SamplingParams& params, const std::vector<Token>& log) const {
    auto sampler = TailSampler::Create({model_.get(), 4096}, params);
    EXPECT_TRUE(sampler.ok()) << sampler.status().message();
    for (size_t taken = 0; taken < log.size(); ++taken) {
      if (!(*sampler)->Accept(std::span(log).first(taken + 1)).ok()) return taken;
    }
    return log.size();
  }
  size_t LlamaTakes(const SamplingParams& params, const std::vector<Token>& log) const {
    common_params_sampling theirs;
    theirs.grammar = common_grammar(COMMON_GRAMMAR_TYPE_TOOL_CALLS, params.grammar);
    theirs.grammar_lazy = true;
    for (const GrammarTrigger& trigger : params.grammar_triggers) {
      theirs.grammar_triggers.push_back({static_cast<common_grammar_trigger_type>(trigger.type), trigger.value, trigger.token});
    }
    theirs.reasoning_budget_start = params.reasoning_budget_start;
    theirs.reasoning_budget_end = params.reasoning_budget_end;
    theirs.reasoning_budget_forced = params.reasoning_budget_forced;
    const common_sampler_ptr sampler(common_sampler_init(model_.get(), theirs));
    for (size_t taken = 0; taken < log.size(); ++taken) {
      try {
        common_sampler_accept(sampler.get(), log[taken], true);
      } catch (const std::exception&) {
        return taken;
      }
    }
    return log.size();
  }

  // Random answers made of these words. What was triggered shows in where an answer stops to fit.
  void ExpectSame(const SamplingParams& params, const std::vector<std::string>& words, std::vector<Token> specials) const {
    std::mt19937 random(7);
    size_t stopped = 0;
    for (int round = 0; round < 400; ++round) {
      std::vector<Token> log;
      while (log.size() < 24) {
        const size_t pick = random() % (words.size() + specials.size());
        if (pick >= words.size()) {
          log.push_back(specials[pick - words.size()]);
        } else {
          for (Token token : Tokenize(words[pick])) log.push_back(token);
        }
      }
      const size_t theirs = LlamaTakes(params, log);
      stopped += theirs < log.size() ? 1 : 0;
      ASSERT_EQ(OursTakes(params, log), theirs) << "round " << round;
    }
    EXPECT_GT(stopped, 50u) << "the words never trigger";
    EXPECT_LT(stopped, 400u);
  }

  tiny::TestFolder folder_;
  LlamaModelPtr model_;
};

const std::vector<std::string> kCalls = {"call", "ca", "ll", "(1)", "(1", ")", "1)(", " x", "calcall", "\n"};

TEST_F(TriggerWatchTest, WordsBeginWhereLlamaSees) {
  // The tokenizer of the model puts a blank in front of each word.
  const SamplingParams params = Lazy({{1, "l x ca", -1}, {1, "call(", -1}, {1, "\n call", -1}}, "root ::= \"l\"? [\\n x]* \"ca\" [l(1) x]+");
  ExpectSame(params, {"call", "ca", "ll(", "call(1)", "(1)", "x", "ca x", "\n", "zcall(", "y"}, {});
}

TEST_F(TriggerWatchTest, TokensBeginWhereLlamaSees) {
  const SamplingParams params = Lazy({{0, "", 300}, {1, "call", -1}}, "root ::= (<[300]> | \"call\") (\"(1)\" | \" x\" | <[300]>)+");
  ExpectSame(params, kCalls, {300});
}

TEST_F(TriggerWatchTest, PatternsBeginWhereLlamaSees) {
  const std::vector<std::string> words = {" ", "\n", "to", " to", "<|start|>", "assistant", "x", "=", "functions"};
  const SamplingParams params = Lazy({{2, R"(^\s+to$)", -1}, {2, R"(<\|start\|>assistant(\s+to))", -1}}, "root ::= [ \\n]+ \"to\" [=x\\n ]+");
  ExpectSame(params, words, {});
}

TEST_F(TriggerWatchTest, ThoughtsDoNotBeginACall) {
  const SamplingParams params = Lazy({{1, "call", -1}, {0, "", kThought}}, "root ::= (\"call\" | <[401]>) (\"(1)\" | \" x\")+");
  ExpectSame(Thinking(params), kCalls, {kThink, kThink, 300, kThought});
  const SamplingParams words_only = Lazy({{1, "call", -1}}, "root ::= \"call\" (\"(1)\" | \" x\")+");
  ExpectSame(Thinking(words_only), kCalls, {kThink, kThink, 300, kThought});
}

// llama.cpp's own search would recurse 40,000 times, and take a second look at all text after each token.
TEST_F(TriggerWatchTest, LongAnswersCostNoStack) {
  SamplingParams params = Lazy({{2, R"(<\|start\|>assistant(\s+to))", -1}}, "root ::= [ ]+ \"to\" \"x\"+");
  std::vector<Token> log = Tokenize("<|start|>assistant");
  const std::vector<Token> line = Tokenize("\n");
  for (int i = 0; i < 40000; ++i) log.push_back(line.back());
  std::vector<Token> call = Tokenize("<|start|>assistant to");
  log.insert(log.end(), call.begin(), call.end());
  auto sampler = TailSampler::Create({model_.get(), 1 << 20}, params);
  ASSERT_TRUE(sampler.ok()) << sampler.status().message();
  EXPECT_TRUE((*sampler)->Accept(log).ok());
  for (Token token : Tokenize("y")) log.push_back(token);
  EXPECT_FALSE((*sampler)->Accept(log).ok()) << "behind all that, the call is still seen";
}

}  // namespace
}  // namespace meshnet
