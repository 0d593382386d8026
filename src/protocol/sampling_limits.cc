#include "protocol/sampling_limits.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <map>
#include <span>

namespace meshnet {
namespace {

Status Limit(const char* field, const std::string& allowed) { return Refused(std::string(field) + " must be " + allowed); }

std::string Between(double low, double high) {
  char text[80];
  std::snprintf(text, sizeof text, "from %.7g to %.7g", low, high);
  return text;
}

Status CheckNumbers(const SamplingParams& params) {
  for (const FloatLimit& limit : kFloatLimits) {
    const float value = params.*limit.member;
    // Not a number fails both comparisons.
    if (!(value >= limit.low && value <= limit.high)) return Limit(limit.field, Between(limit.low, limit.high));
  }
  for (const IntegerLimit& limit : kIntegerLimits) {
    const int32_t value = params.*limit.member;
    if (value < limit.low || value > limit.high) return Limit(limit.field, Between(limit.low, limit.high));
  }
  if (params.logprobs > kLogprobsMax) return Limit("logprobs", Between(0, kLogprobsMax));
  if (params.prompt_len.value > (1u << 30)) return Limit("prompt_len", "a position of the session");
  return OkStatus();
}

Status CheckSizes(const SamplingParams& params) {
  const struct {
    const char* field;
    size_t size, max;
  } sizes[] = {
      {"dry_sequence_breakers", params.dry_sequence_breakers.size(), kSequenceBreakersMax},
      {"samplers", params.samplers.size(), kSamplersMax},
      {"logit_bias", params.logit_bias.size(), kLogitBiasMax},
      {"grammar", params.grammar.size(), kGrammarBytesMax},
      {"grammar_triggers", params.grammar_triggers.size(), kGrammarTriggersMax},
      {"preserved_tokens", params.preserved_tokens.size(), kTokenListMax},
      {"generation_prompt", params.generation_prompt.size(), kGenerationPromptBytesMax},
      {"reasoning_budget_start", params.reasoning_budget_start.size(), kTokenListMax},
      {"reasoning_budget_end", params.reasoning_budget_end.size(), kReasoningEndsMax},
      {"reasoning_budget_forced", params.reasoning_budget_forced.size(), kTokenListMax},
  };
  for (const auto& row : sizes) {
    if (row.size > row.max) return Limit(row.field, "at most " + std::to_string(row.max) + " long, not " + std::to_string(row.size));
  }
  return OkStatus();
}

Status CheckSamplers(const SamplingParams& params) {
  if (params.samplers.find_first_not_of(kSamplerLetters) != std::string::npos) return Limit("samplers", "of the letters " + std::string(kSamplerLetters));
  const size_t infill = params.samplers.find('i');
  if (infill == std::string::npos) return OkStatus();
  const bool cut = params.samplers.find('k') < infill && params.top_k >= 1 && params.top_k <= kInfillCandidatesMax && params.min_keep <= kInfillCandidatesMax;
  return cut ? OkStatus()
             : Limit("samplers", "such that infill comes after top_k, with top_k from 1 to " + std::to_string(kInfillCandidatesMax) + " and min_keep not above that");
}

Status CheckLogitBias(const SamplingParams& params) {
  std::map<Token, double> sums;
  for (const LogitBias& bias : params.logit_bias) {
    if (std::isnan(bias.bias) || bias.bias == std::numeric_limits<float>::infinity()) return Limit("logit_bias", "finite, or -inf to forbid the token");
    if (!std::isinf(bias.bias)) sums[bias.token] += bias.bias;
    if (std::abs(sums[bias.token]) > kLogitBiasSumMax) return Limit("logit_bias", Between(-kLogitBiasSumMax, kLogitBiasSumMax) + " in all for one token, or -inf to forbid it");
  }
  return OkStatus();
}

// llama.cpp takes these as C strings.
Status CheckText(const char* field, const std::string& text, size_t bytes_max) {
  if (text.size() > bytes_max) return Limit(field, "of at most " + std::to_string(bytes_max) + " bytes each");
  if (text.find('\0') != std::string::npos) return Limit(field, "without a zero byte");
  return OkStatus();
}

Status CheckTexts(const SamplingParams& params) {
  for (const std::string& breaker : params.dry_sequence_breakers) {
    if (Status status = CheckText("dry_sequence_breakers", breaker, kSequenceBreakerBytesMax); !status.ok()) return status;
  }
  for (const GrammarTrigger& trigger : params.grammar_triggers) {
    if (trigger.type < 0 || trigger.type > 3) return Limit("grammar_triggers.type", Between(0, 3));
    if (Status status = CheckText("grammar_triggers", trigger.value, kGrammarTriggerBytesMax); !status.ok()) return status;
    if (trigger.type == 1 && trigger.value.empty()) return Limit("grammar_triggers", "tokens, words or patterns, not empty");
    const bool pattern = trigger.type >= 2;
    if (pattern && std::ranges::find(kTriggerPatterns, trigger.value) == std::end(kTriggerPatterns)) {
      return Limit("grammar_triggers", "tokens, words or patterns of llama.cpp's own chat templates");
    }
  }
  return OkStatus();
}

Status CheckTokens(const SamplingParams& params, uint32_t vocabulary_size) {
  const auto known = [&](Token token) { return token >= 0 && static_cast<uint32_t>(token) < vocabulary_size; };
  const std::string allowed = "token ids below " + std::to_string(vocabulary_size);
  for (const LogitBias& bias : params.logit_bias) {
    if (!known(bias.token)) return Limit("logit_bias", allowed);
  }
  for (const GrammarTrigger& trigger : params.grammar_triggers) {
    const bool needed = trigger.type == 0;
    if (!known(trigger.token) && (needed || trigger.token != -1)) return Limit("grammar_triggers.token", needed ? allowed : "-1, or " + allowed);
  }
  const auto check = [&](const char* field, std::span<const Token> tokens) {
    for (Token token : tokens) {
      if (!known(token)) return Limit(field, allowed);
    }
    return OkStatus();
  };
  if (Status status = check("preserved_tokens", params.preserved_tokens); !status.ok()) return status;
  if (Status status = check("reasoning_budget_start", params.reasoning_budget_start); !status.ok()) return status;
  if (Status status = check("reasoning_budget_forced", params.reasoning_budget_forced); !status.ok()) return status;
  for (const std::vector<Token>& end : params.reasoning_budget_end) {
    if (end.size() > kTokenListMax) return Limit("reasoning_budget_end", "of at most " + std::to_string(kTokenListMax) + " tokens each");
    if (Status status = check("reasoning_budget_end", end); !status.ok()) return status;
  }
  return OkStatus();
}

}  // namespace

Status CheckSamplingParams(const SamplingParams& params, uint32_t vocabulary_size) {
  if (Status status = CheckNumbers(params); !status.ok()) return status;
  if (Status status = CheckSizes(params); !status.ok()) return status;
  if (Status status = CheckTexts(params); !status.ok()) return status;
  if (Status status = CheckSamplers(params); !status.ok()) return status;
  if (Status status = CheckLogitBias(params); !status.ok()) return status;
  return CheckTokens(params, vocabulary_size);
}

}  // namespace meshnet
