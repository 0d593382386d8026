#include "engine/llama/sampling_bounds.h"

#include <cctype>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "grammar/utf8.h"

namespace meshnet {
namespace {

std::string Text(double value) {
  std::string text = std::to_string(value);
  while (text.find('.') != std::string::npos && (text.back() == '0' || text.back() == '.')) {
    const bool dot = text.back() == '.';
    text.pop_back();
    if (dot) break;
  }
  return text;
}

Status CheckNumber(const char* name, double value, double least, double most) {
  if (value >= least && value <= most) return OkStatus();  // false for NaN
  return Refused(std::string(name) + " is " + Text(value) + "; it must lie between " + Text(least) + " and " + Text(most));
}

Status CheckCount(const char* name, size_t count, size_t most) {
  if (count <= most) return OkStatus();
  return Refused(std::string(name) + ": " + std::to_string(count) + " given, at most " + std::to_string(most) + " are taken");
}

Status CheckToken(const char* name, Token token, const SamplingBounds& bounds) {
  if (token >= 0 && static_cast<uint32_t>(token) < bounds.vocabulary_size) return OkStatus();
  return Refused(std::string(name) + ": token " + std::to_string(token) + " is not in the vocabulary of " + std::to_string(bounds.vocabulary_size));
}

Status CheckTokens(const char* name, std::span<const Token> tokens, const SamplingBounds& bounds) {
  if (Status status = CheckCount(name, tokens.size(), bounds.tokens_max); !status.ok()) return status;
  for (Token token : tokens) {
    if (Status status = CheckToken(name, token, bounds); !status.ok()) return status;
  }
  return OkStatus();
}

Status CheckNumbers(const SamplingParams& p) {
  constexpr double kBig = 1e6;
  for (const Status& status : {
           CheckNumber("temperature", p.temperature, -kBig, kBig),
           CheckNumber("dynatemp_range", p.dynatemp_range, 0, kBig),
           CheckNumber("dynatemp_exponent", p.dynatemp_exponent, 0, 100),
           CheckNumber("top_p", p.top_p, 0, kBig),
           CheckNumber("min_p", p.min_p, 0, kBig),
           CheckNumber("top_n_sigma", p.top_n_sigma, -kBig, kBig),
           CheckNumber("typical_p", p.typical_p, 0, kBig),
           CheckNumber("xtc_probability", p.xtc_probability, 0, 1),
           CheckNumber("xtc_threshold", p.xtc_threshold, 0, kBig),
           CheckNumber("min_keep", p.min_keep, 0, kBig),
           CheckNumber("repeat_last_n", p.repeat_last_n, -1, 1 << 24),
           CheckNumber("repeat_penalty", p.repeat_penalty, 1e-6, kBig),
           CheckNumber("presence_penalty", p.presence_penalty, -kBig, kBig),
           CheckNumber("frequency_penalty", p.frequency_penalty, -kBig, kBig),
           CheckNumber("dry_multiplier", p.dry_multiplier, 0, kBig),
           CheckNumber("dry_base", p.dry_base, 0, kBig),
           CheckNumber("dry_allowed_length", p.dry_allowed_length, 0, 1 << 24),
           CheckNumber("dry_penalty_last_n", p.dry_penalty_last_n, -1, 1 << 24),
           CheckNumber("mirostat", p.mirostat, 0, 2),
           CheckNumber("mirostat_tau", p.mirostat_tau, 0, kBig),
           CheckNumber("mirostat_eta", p.mirostat_eta, 0, kBig),
           CheckNumber("adaptive_target", p.adaptive_target, -kBig, 1),
           CheckNumber("adaptive_decay", p.adaptive_decay, 0, 0.99),
           CheckNumber("grammar_type", p.grammar_type, 0, 3),
           CheckNumber("reasoning_budget_tokens", p.reasoning_budget_tokens, -1, INT32_MAX),
       }) {
    if (!status.ok()) return status;
  }
  return OkStatus();
}

Status CheckStrings(const char* name, const std::vector<std::string>& strings, const SamplingBounds& bounds) {
  if (Status status = CheckCount(name, strings.size(), bounds.strings_max); !status.ok()) return status;
  for (const std::string& string : strings) {
    if (string.size() > bounds.string_bytes_max) return Refused(std::string(name) + ": one of them is longer than " + std::to_string(bounds.string_bytes_max) + " bytes");
    if (string.find('\0') != std::string::npos) return Refused(std::string(name) + ": one of them holds a zero byte");
  }
  return OkStatus();
}

Status CheckTriggers(const SamplingParams& params, const SamplingBounds& bounds) {
  if (Status status = CheckCount("grammar_triggers", params.grammar_triggers.size(), bounds.strings_max); !status.ok()) return status;
  for (const GrammarTrigger& trigger : params.grammar_triggers) {
    if (trigger.type < 0 || trigger.type > 3) return Refused("grammar_triggers: type " + std::to_string(trigger.type) + " is unknown");
    if (Status status = CheckStrings("grammar_triggers", {trigger.value}, bounds); !status.ok()) return status;
    if (trigger.type == 0) {
      if (Status status = CheckToken("grammar_triggers", trigger.token, bounds); !status.ok()) return status;
    } else if (trigger.type >= 2) {
      if (Status status = CheckTriggerPattern(trigger.value); !status.ok()) return status;
    }
  }
  return OkStatus();
}

Status CheckLists(const SamplingParams& params, const SamplingBounds& bounds) {
  if (Status status = CheckCount("logit_bias", params.logit_bias.size(), bounds.logit_biases_max); !status.ok()) return status;
  for (const LogitBias& bias : params.logit_bias) {
    if (Status status = CheckToken("logit_bias", bias.token, bounds); !status.ok()) return status;
    if (std::isnan(bias.bias) || bias.bias == INFINITY) return Refused("logit_bias: token " + std::to_string(bias.token) + " has no usable bias");
  }
  if (Status status = CheckTokens("preserved_tokens", params.preserved_tokens, bounds); !status.ok()) return status;
  if (Status status = CheckTokens("reasoning_budget_start", params.reasoning_budget_start, bounds); !status.ok()) return status;
  if (Status status = CheckTokens("reasoning_budget_forced", params.reasoning_budget_forced, bounds); !status.ok()) return status;
  if (Status status = CheckCount("reasoning_budget_end", params.reasoning_budget_end.size(), bounds.token_lists_max); !status.ok()) return status;
  for (const std::vector<Token>& tokens : params.reasoning_budget_end) {
    if (Status status = CheckTokens("reasoning_budget_end", tokens, bounds); !status.ok()) return status;
  }
  return OkStatus();
}

}  // namespace

Status CheckTriggerPattern(std::string_view pattern) {
  bool bounded_item = false;  // the last item may be repeated without bound
  for (size_t at = 0; at < pattern.size(); ++at) {
    const char c = pattern[at];
    if (c == '\\') {
      const char escaped = at + 1 < pattern.size() ? pattern[at + 1] : '\0';
      if (std::isdigit(static_cast<unsigned char>(escaped)) && escaped != '0') return Refused("grammar_triggers: a pattern refers back to a group");
      bounded_item = true;
      ++at;
    } else if (c == '*' || c == '+' || c == '{') {
      if (!bounded_item) return Refused("grammar_triggers: a pattern repeats a group, a class or \".\" without bound; repeat only \\s, \\d, \\w or a character");
      bounded_item = false;
    } else if (c == '[') {
      ++at;
      if (at < pattern.size() && pattern[at] == '^') ++at;
      if (at < pattern.size() && pattern[at] == ']') ++at;
      while (at < pattern.size() && pattern[at] != ']') at += pattern[at] == '\\' ? 2 : 1;
      bounded_item = false;
    } else {
      bounded_item = c != ')' && c != '.' && c != '(' && c != '|' && c != '?';
    }
  }
  return OkStatus();
}

Status CheckSamplingBounds(const SamplingParams& params, const SamplingBounds& bounds) {
  if (Status status = CheckNumbers(params); !status.ok()) return status;
  if (params.logprobs > bounds.logprobs_max) {
    return Refused("logprobs is " + std::to_string(params.logprobs) + "; at most " + std::to_string(bounds.logprobs_max) + " alternatives are reported");
  }
  constexpr std::string_view kSamplers = "dkypsmtxiea";
  if (params.samplers.size() > 32 || params.samplers.find_first_not_of(kSamplers) != std::string::npos) {
    return Refused("samplers may hold at most 32 of the letters " + std::string(kSamplers));
  }
  if (Status status = CheckStrings("dry_sequence_breakers", params.dry_sequence_breakers, bounds); !status.ok()) return status;
  if (params.generation_prompt.size() > bounds.generation_prompt_bytes_max || params.generation_prompt.find('\0') != std::string::npos ||
      !grammar::IsUtf8(params.generation_prompt)) {
    return Refused("generation_prompt must be UTF-8 text of at most " + std::to_string(bounds.generation_prompt_bytes_max) + " bytes");
  }
  if (Status status = CheckTriggers(params, bounds); !status.ok()) return status;
  return CheckLists(params, bounds);
}

}  // namespace meshnet
