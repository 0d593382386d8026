#include "wire/validate_sampling.h"

#include <cmath>
#include <limits>

#include "wire/validate.h"
#include "wire/wire_limits.h"

namespace meshnet {
namespace {

namespace pb = shard::v1;

Refusal Limit(const std::string& field, const std::string& allowed) {
  Refusal refusal;
  refusal.reason = Reason::kBadRequest;
  refusal.detail = Detail::kLimit;
  refusal.message = "sampling." + field + " must be " + allowed;
  return refusal;
}

std::string Between(double low, double high) {
  auto text = [](double value) {
    std::string digits = std::to_string(value);
    digits.erase(digits.find_last_not_of('0') + 1);
    if (digits.ends_with('.')) digits.pop_back();
    return digits;
  };
  return "from " + text(low) + " to " + text(high);
}

struct FloatRange {
  const char* field;
  float SamplingParams::*member;
  float low, high;
};
// Wide on purpose: the API narrows what people may ask; here only what would make llama.cpp's arithmetic meaningless is refused.
constexpr FloatRange kFloats[] = {
    {"temperature", &SamplingParams::temperature, -1000, 1000},
    {"dynatemp_range", &SamplingParams::dynatemp_range, 0, 1000},
    {"dynatemp_exponent", &SamplingParams::dynatemp_exponent, 0, 1000},
    {"top_p", &SamplingParams::top_p, 0, 1000},
    {"min_p", &SamplingParams::min_p, 0, 1},
    {"top_n_sigma", &SamplingParams::top_n_sigma, -1000, 1000},
    {"typical_p", &SamplingParams::typical_p, -1000, 1000},
    {"xtc_probability", &SamplingParams::xtc_probability, 0, 1},
    {"xtc_threshold", &SamplingParams::xtc_threshold, 0, 1},
    {"repeat_penalty", &SamplingParams::repeat_penalty, 0, 1000},
    {"presence_penalty", &SamplingParams::presence_penalty, -1000, 1000},
    {"frequency_penalty", &SamplingParams::frequency_penalty, -1000, 1000},
    {"dry_multiplier", &SamplingParams::dry_multiplier, 0, 1000},
    {"dry_base", &SamplingParams::dry_base, 0, 1000},
    {"mirostat_tau", &SamplingParams::mirostat_tau, 0, 1000},
    {"mirostat_eta", &SamplingParams::mirostat_eta, 0, 1000},
    {"adaptive_target", &SamplingParams::adaptive_target, -1000, 1},
    {"adaptive_decay", &SamplingParams::adaptive_decay, 0, 0.99f},
};

struct IntegerRange {
  const char* field;
  int32_t SamplingParams::*member;
  int32_t low, high;
};
constexpr int32_t kTokensBack = 1 << 24;
constexpr IntegerRange kIntegers[] = {
    {"top_k", &SamplingParams::top_k, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()},
    {"min_keep", &SamplingParams::min_keep, 0, kTokensBack},
    {"repeat_last_n", &SamplingParams::repeat_last_n, -1, kTokensBack},
    {"dry_allowed_length", &SamplingParams::dry_allowed_length, 0, kTokensBack},
    {"dry_penalty_last_n", &SamplingParams::dry_penalty_last_n, -1, kTokensBack},
    {"mirostat", &SamplingParams::mirostat, 0, 2},
    {"grammar_type", &SamplingParams::grammar_type, 0, 3},
    {"reasoning_budget_tokens", &SamplingParams::reasoning_budget_tokens, -1, kTokensBack},
};

// Sizes before anything is copied: a list of a million entries costs the sender, not us.
std::optional<Refusal> CheckSizes(const pb::SamplingParams& wire) {
  struct Size {
    const char* field;
    size_t size, max;
  } sizes[] = {
      {"dry_sequence_breakers", static_cast<size_t>(wire.dry_sequence_breakers_size()), kSequenceBreakersMax},
      {"samplers", wire.samplers().size(), kSamplersMax},
      {"logit_bias", static_cast<size_t>(wire.logit_bias_size()), kLogitBiasMax},
      {"grammar", wire.grammar().size(), kGrammarBytesMax},
      {"grammar_triggers", static_cast<size_t>(wire.grammar_triggers_size()), kGrammarTriggersMax},
      {"preserved_tokens", static_cast<size_t>(wire.preserved_tokens_size()), kTokenListMax},
      {"generation_prompt", wire.generation_prompt().size(), kGenerationPromptBytesMax},
      {"reasoning_budget_start", static_cast<size_t>(wire.reasoning_budget_start_size()), kTokenListMax},
      {"reasoning_budget_end", static_cast<size_t>(wire.reasoning_budget_end_size()), kReasoningEndsMax},
      {"reasoning_budget_forced", static_cast<size_t>(wire.reasoning_budget_forced_size()), kTokenListMax},
  };
  for (const Size& row : sizes) {
    if (row.size > row.max) return Limit(row.field, "at most " + std::to_string(row.max) + " long, not " + std::to_string(row.size));
  }
  for (const std::string& breaker : wire.dry_sequence_breakers()) {
    if (breaker.size() > kSequenceBreakerBytesMax) return Limit("dry_sequence_breakers", "of at most " + std::to_string(kSequenceBreakerBytesMax) + " bytes each");
  }
  for (const pb::GrammarTrigger& trigger : wire.grammar_triggers()) {
    if (trigger.value().size() > kGrammarTriggerBytesMax) return Limit("grammar_triggers", "of at most " + std::to_string(kGrammarTriggerBytesMax) + " bytes each");
  }
  for (const pb::TokenList& end : wire.reasoning_budget_end()) {
    if (static_cast<size_t>(end.tokens_size()) > kTokenListMax) return Limit("reasoning_budget_end", "of at most " + std::to_string(kTokenListMax) + " tokens each");
  }
  return std::nullopt;
}

template <typename Field>
std::vector<Token> Tokens(const Field& field) {
  return std::vector<Token>(field.begin(), field.end());
}

SamplingParams Copy(const pb::SamplingParams& wire) {
  SamplingParams params;
  params.seed = wire.seed();
  params.prompt_len = PastLen(wire.prompt_len());
  params.temperature = wire.temperature();
  params.dynatemp_range = wire.dynatemp_range();
  params.dynatemp_exponent = wire.dynatemp_exponent();
  params.top_k = wire.top_k();
  params.top_p = wire.top_p();
  params.min_p = wire.min_p();
  params.top_n_sigma = wire.top_n_sigma();
  params.typical_p = wire.typical_p();
  params.xtc_probability = wire.xtc_probability();
  params.xtc_threshold = wire.xtc_threshold();
  params.min_keep = wire.min_keep();
  params.repeat_last_n = wire.repeat_last_n();
  params.repeat_penalty = wire.repeat_penalty();
  params.presence_penalty = wire.presence_penalty();
  params.frequency_penalty = wire.frequency_penalty();
  params.dry_multiplier = wire.dry_multiplier();
  params.dry_base = wire.dry_base();
  params.dry_allowed_length = wire.dry_allowed_length();
  params.dry_penalty_last_n = wire.dry_penalty_last_n();
  params.dry_sequence_breakers.assign(wire.dry_sequence_breakers().begin(), wire.dry_sequence_breakers().end());
  params.mirostat = wire.mirostat();
  params.mirostat_tau = wire.mirostat_tau();
  params.mirostat_eta = wire.mirostat_eta();
  params.adaptive_target = wire.adaptive_target();
  params.adaptive_decay = wire.adaptive_decay();
  params.ignore_eos = wire.ignore_eos();
  params.samplers = wire.samplers();
  for (const pb::LogitBias& bias : wire.logit_bias()) params.logit_bias.push_back({bias.token(), bias.bias()});
  params.grammar = wire.grammar();
  params.grammar_type = wire.grammar_type();
  params.grammar_lazy = wire.grammar_lazy();
  for (const pb::GrammarTrigger& trigger : wire.grammar_triggers()) {
    params.grammar_triggers.push_back({trigger.type(), trigger.value(), trigger.token()});
  }
  params.preserved_tokens = Tokens(wire.preserved_tokens());
  params.generation_prompt = wire.generation_prompt();
  params.reasoning_budget_tokens = wire.reasoning_budget_tokens();
  params.reasoning_budget_start = Tokens(wire.reasoning_budget_start());
  for (const pb::TokenList& end : wire.reasoning_budget_end()) params.reasoning_budget_end.push_back(Tokens(end.tokens()));
  params.reasoning_budget_forced = Tokens(wire.reasoning_budget_forced());
  params.logprobs = wire.logprobs();
  params.logprobs_wanted = wire.logprobs_wanted();
  params.post_sampling_probs = wire.post_sampling_probs();
  return params;
}

std::optional<Refusal> CheckTokens(const SamplingParams& params, uint32_t vocabulary_size) {
  auto known = [&](Token token) { return token >= 0 && static_cast<uint32_t>(token) < vocabulary_size; };
  auto all_known = [&](const std::vector<Token>& tokens) {
    for (Token token : tokens) {
      if (!known(token)) return false;
    }
    return true;
  };
  const std::string allowed = "token ids below " + std::to_string(vocabulary_size);
  for (const LogitBias& bias : params.logit_bias) {
    if (!known(bias.token)) return Limit("logit_bias", allowed);
    if (std::isnan(bias.bias) || bias.bias == std::numeric_limits<float>::infinity()) return Limit("logit_bias", "finite, or -inf to forbid the token");
  }
  for (const GrammarTrigger& trigger : params.grammar_triggers) {
    if (trigger.type < 0 || trigger.type > 3) return Limit("grammar_triggers.type", Between(0, 3));
    if (trigger.token != -1 && !known(trigger.token)) return Limit("grammar_triggers.token", "-1, or " + allowed);
  }
  if (!all_known(params.preserved_tokens)) return Limit("preserved_tokens", allowed);
  if (!all_known(params.reasoning_budget_start)) return Limit("reasoning_budget_start", allowed);
  if (!all_known(params.reasoning_budget_forced)) return Limit("reasoning_budget_forced", allowed);
  for (const std::vector<Token>& end : params.reasoning_budget_end) {
    if (!all_known(end)) return Limit("reasoning_budget_end", allowed);
  }
  return std::nullopt;
}

}  // namespace

std::optional<Refusal> CheckSamplingRanges(const SamplingParams& params, uint32_t vocabulary_size) {
  for (const FloatRange& row : kFloats) {
    float value = params.*row.member;
    // Not a number fails both comparisons.
    if (!(value >= row.low && value <= row.high)) return Limit(row.field, Between(row.low, row.high));
  }
  if (params.repeat_penalty == 0) return Limit("repeat_penalty", "above 0");
  for (const IntegerRange& row : kIntegers) {
    int32_t value = params.*row.member;
    if (value < row.low || value > row.high) return Limit(row.field, Between(row.low, row.high));
  }
  if (params.logprobs > kLogprobsMax) return Limit("logprobs", Between(0, kLogprobsMax));
  if (params.prompt_len.value > (1u << 30)) return Limit("prompt_len", "a position of the session");
  for (char sampler : params.samplers) {
    if (sampler < 'a' || sampler > 'z') return Limit("samplers", "one lower-case letter per sampler");
  }
  return CheckTokens(params, vocabulary_size);
}

std::variant<SamplingParams, Refusal> ValidateSampling(const pb::SamplingParams& wire, uint32_t vocabulary_size) {
  if (std::optional<Refusal> refusal = CheckSizes(wire)) return std::move(*refusal);
  SamplingParams params = Copy(wire);
  if (std::optional<Refusal> refusal = CheckSamplingRanges(params, vocabulary_size)) return std::move(*refusal);
  return params;
}

}  // namespace meshnet
