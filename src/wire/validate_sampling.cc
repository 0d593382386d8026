#include "wire/validate_sampling.h"

#include <string>
#include <vector>

#include "grammar/bounds.h"
#include "protocol/sampling_limits.h"
#include "wire/wire_limits.h"

namespace meshnet {
namespace {

namespace pb = shard::v1;

static_assert(grammar::Limits().text_bytes_max == kGrammarBytesMax);

Refusal Limit(const std::string& message) {
  Refusal refusal;
  refusal.reason = Reason::kBadRequest;
  refusal.detail = Detail::kLimit;
  refusal.message = "sampling." + message;
  return refusal;
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

}  // namespace

std::variant<SamplingParams, Refusal> ValidateSampling(const pb::SamplingParams& wire, uint32_t vocabulary_size) {
  // Before anything is copied: a list of a million entries costs the sender, not us.
  if (wire.ByteSizeLong() > kStepOverheadBytesMax) return Limit("* must be at most " + std::to_string(kStepOverheadBytesMax) + " bytes in all");
  SamplingParams params = Copy(wire);
  if (Status status = CheckSamplingParams(params, vocabulary_size); !status.ok()) return Limit(status.message());
  if (params.grammar.empty()) return params;
  // Here and not on the engine's thread, where every session would wait for it. Whether a `<text>` is a token is asked there.
  if (Status status = grammar::CheckGrammar(params.grammar, {}, vocabulary_size, nullptr); !status.ok()) return Limit("grammar: " + status.message());
  return params;
}

}  // namespace meshnet
