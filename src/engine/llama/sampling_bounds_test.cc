#include "engine/llama/sampling_bounds.h"

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace meshnet {
namespace {

using testing::HasSubstr;

TEST(SamplingBoundsTest, NamesTheParameter) {
  struct Case {
    std::function<void(SamplingParams&)> change;
    std::string reason;  // empty: taken
  };
  const std::vector<Case> cases = {
      {[](SamplingParams&) {}, ""},
      {[](SamplingParams& p) { p.temperature = 0; }, ""},
      {[](SamplingParams& p) { p.samplers = "edkypmxt"; }, ""},
      {[](SamplingParams& p) { p.logit_bias = {{5, -INFINITY}}; }, ""},
      {[](SamplingParams& p) { p.temperature = NAN; }, "temperature"},
      {[](SamplingParams& p) { p.repeat_penalty = 0; }, "repeat_penalty is 0;"},
      {[](SamplingParams& p) { p.repeat_last_n = INT32_MAX; }, "repeat_last_n"},
      {[](SamplingParams& p) { p.mirostat = 3; }, "mirostat is 3; it must lie between 0 and 2"},
      {[](SamplingParams& p) { p.dry_base = INFINITY; }, "dry_base"},
      {[](SamplingParams& p) { p.adaptive_decay = 1; }, "adaptive_decay"},
      {[](SamplingParams& p) { p.min_keep = -1; }, "min_keep"},
      {[](SamplingParams& p) { p.grammar_type = 9; }, "grammar_type"},
      {[](SamplingParams& p) { p.samplers = "kz"; }, "samplers"},
      {[](SamplingParams& p) { p.logprobs = 100000; }, "logprobs"},
      {[](SamplingParams& p) { p.logit_bias = {{100, 1}}; }, "token 100 is not in the vocabulary of 100"},
      {[](SamplingParams& p) { p.logit_bias = {{5, NAN}}; }, "no usable bias"},
      {[](SamplingParams& p) { p.preserved_tokens = {-1}; }, "preserved_tokens"},
      {[](SamplingParams& p) { p.reasoning_budget_end = {{1}, {1000}}; }, "reasoning_budget_end"},
      {[](SamplingParams& p) { p.dry_sequence_breakers.assign(65, "x"); }, "dry_sequence_breakers"},
      {[](SamplingParams& p) { p.dry_sequence_breakers = {std::string(2000, 'x')}; }, "longer than 1024"},
      {[](SamplingParams& p) { p.generation_prompt = "\xff"; }, "generation_prompt"},
      {[](SamplingParams& p) { p.grammar_triggers = {{7, "x", 0}}; }, "type 7 is unknown"},
      {[](SamplingParams& p) { p.grammar_triggers = {{0, "", 500}}; }, "token 500"},
      {[](SamplingParams& p) { p.grammar_triggers = {{2, "(a|b)*c", -1}}; }, "repeats a group"},
      {[](SamplingParams& p) { p.grammar_triggers = {{1, "(a|b)*c", -1}}; }, ""},  // a word, not a pattern
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    SamplingParams params;
    cases[i].change(params);
    const Status status = CheckSamplingBounds(params, {.vocabulary_size = 100});
    EXPECT_EQ(status.ok(), cases[i].reason.empty()) << i << ": " << status.message();
    EXPECT_THAT(status.message(), HasSubstr(cases[i].reason)) << i;
  }
}

TEST(SamplingBoundsTest, TakesThePatternsOfLlamasOwnTemplates) {
  for (const char* pattern : {R"(^\s+to$)", R"(^<\|channel\|>(?:commentary|analysis)\s+to=functions$)", R"(<\|start\|>assistant(\s+to))", ">>>(?!all)"}) {
    EXPECT_TRUE(CheckTriggerPattern(pattern).ok()) << pattern;
  }
  for (const char* pattern : {R"([\s\S]*x)", "(a+)+", ".*", "(?:x){2,}", R"((a)\1)", "a**"}) {
    EXPECT_FALSE(CheckTriggerPattern(pattern).ok()) << pattern;
  }
}

}  // namespace
}  // namespace meshnet
