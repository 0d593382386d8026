#include "kv/fingerprint.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

namespace meshnet::kv {
namespace {

Step Base() {
  Step step;
  step.key.epoch = Epoch(3);
  step.seq = StepSeq(5);
  step.kind = StepKind::kDecode;
  step.start = PastLen(7);
  step.tokens = {1};
  step.input = HiddenState(1, 2, {0.5f, 0.25f});
  step.sampling.emplace();
  return step;
}

TEST(FingerprintTest, AnythingThatChangesTheResultChangesIt) {
  using Change = std::function<void(Step&)>;
  const std::vector<std::pair<const char*, Change>> changes = {
      {"seq", [](Step& s) { s.seq = StepSeq(6); }},
      {"kind", [](Step& s) { s.kind = StepKind::kPrefill; }},
      {"start", [](Step& s) { s.start = PastLen(8); }},
      {"digest", [](Step& s) { s.prefix_digest.bytes[15] = 1; }},
      {"token", [](Step& s) { s.tokens[0] = 2; }},
      {"token count", [](Step& s) { s.tokens.push_back(0); }},
      {"rows", [](Step& s) { s.rows = RowsWanted::kLast; }},
      {"logits", [](Step& s) { s.logits_wanted = true; }},
      {"no input", [](Step& s) { s.input.reset(); }},
      {"input value", [](Step& s) { s.input = HiddenState(1, 2, {0.5f, 0.26f}); }},
      {"input shape", [](Step& s) { s.input = HiddenState(2, 1, {0.5f, 0.25f}); }},
      {"negative zero", [](Step& s) { s.input = HiddenState(1, 2, {0.5f, -0.0f}); }},
      {"zero", [](Step& s) { s.input = HiddenState(1, 2, {0.5f, 0.0f}); }},
      {"no sampling", [](Step& s) { s.sampling.reset(); }},
      {"seed", [](Step& s) { s.sampling->seed = 1; }},
      {"prompt length", [](Step& s) { s.sampling->prompt_len = PastLen(1); }},
      {"temperature", [](Step& s) { s.sampling->temperature = 0.81f; }},
      {"breakers", [](Step& s) { s.sampling->dry_sequence_breakers = {"\n:", "\"", "*"}; }},
      {"bias", [](Step& s) { s.sampling->logit_bias = {{1, 2.0f}}; }},
      {"other bias", [](Step& s) { s.sampling->logit_bias = {{2, 1.0f}}; }},
      {"grammar", [](Step& s) { s.sampling->grammar = std::string(700, 'g'); }},
      {"other grammar", [](Step& s) { s.sampling->grammar = std::string(701, 'g'); }},
      {"trigger", [](Step& s) { s.sampling->grammar_triggers = {{1, "x", -1}}; }},
      {"budget end", [](Step& s) { s.sampling->reasoning_budget_end = {{1}, {2}}; }},
      {"other budget end", [](Step& s) { s.sampling->reasoning_budget_end = {{1, 2}}; }},
      {"last field", [](Step& s) { s.sampling->post_sampling_probs = true; }},
  };
  std::set<Fingerprint> seen = {FingerprintOf(Base())};
  for (const auto& [name, change] : changes) {
    Step step = Base();
    change(step);
    EXPECT_TRUE(seen.insert(FingerprintOf(step)).second) << name;
  }
}

TEST(FingerprintTest, WhatARepetitionMayChangeDoesNot) {
  Step step = Base();
  step.key.epoch = Epoch(9);
  step.incarnation.bytes[0] = 1;
  step.ack = StepSeq(4);
  step.deadline = Time(std::chrono::seconds(1));
  EXPECT_EQ(FingerprintOf(step), FingerprintOf(Base()));
}

}  // namespace
}  // namespace meshnet::kv
