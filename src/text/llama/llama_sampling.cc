#include "text/llama/llama_sampling.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <exception>
#include <memory>

#include "grammar/bounds.h"
#include "grammar/text_run.h"
#include "llama.h"
#include "protocol/sampling_limits.h"
#include "sampling.h"
#include "text/request_fields.h"

namespace meshnet::text {
namespace {

struct SamplerDeleter {
  void operator()(llama_sampler* sampler) const { llama_sampler_free(sampler); }
};

// The tokens that advance the grammar past what the template already wrote (common_sampler_init).
std::vector<Token> PrefillTokens(const LlamaVocabulary& vocabulary, const std::string& generation_prompt) {
  auto tokens = vocabulary.Tokenize(generation_prompt, LlamaVocabulary::BeginningOfText::kNo, true).value_or(std::vector<Token>());
  if (tokens.empty()) return tokens;
  const std::string first = vocabulary.Piece(tokens.front(), SpecialTokens::kShow);
  const auto is_space = [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; };
  if (!first.empty() && is_space(first[0]) && !is_space(generation_prompt[0])) tokens.erase(tokens.begin());
  return tokens;
}

}  // namespace

SamplingParams ToSamplingParams(const common_params_sampling& source, uint32_t context_tokens) {
  SamplingParams params;
  params.temperature = source.temp;
  params.dynatemp_range = source.dynatemp_range;
  params.dynatemp_exponent = source.dynatemp_exponent;
  params.top_k = source.top_k;
  params.top_p = source.top_p;
  params.min_p = source.min_p;
  params.top_n_sigma = source.top_n_sigma;
  params.typical_p = source.typ_p;
  params.xtc_probability = source.xtc_probability;
  params.xtc_threshold = source.xtc_threshold;
  params.min_keep = source.min_keep;
  const int32_t window_max = static_cast<int32_t>(std::min<uint32_t>(context_tokens, INT32_MAX));
  params.repeat_last_n = std::clamp(source.penalty_last_n, 0, window_max);
  params.repeat_penalty = source.penalty_repeat;
  params.presence_penalty = source.penalty_present;
  params.frequency_penalty = source.penalty_freq;
  params.dry_multiplier = source.dry_multiplier;
  params.dry_base = source.dry_base;
  params.dry_allowed_length = source.dry_allowed_length;
  params.dry_penalty_last_n = std::clamp(source.dry_penalty_last_n, 0, window_max);
  params.dry_sequence_breakers = source.dry_sequence_breakers;
  params.mirostat = source.mirostat;
  params.mirostat_tau = source.mirostat_tau;
  params.mirostat_eta = source.mirostat_eta;
  params.adaptive_target = source.adaptive_target;
  params.adaptive_decay = source.adaptive_decay;
  params.ignore_eos = source.ignore_eos;
  if (source.samplers != common_params_sampling().samplers) {
    for (common_sampler_type sampler : source.samplers) params.samplers += common_sampler_type_to_chr(sampler);
  }
  for (const llama_logit_bias& bias : source.logit_bias) params.logit_bias.push_back({bias.token, bias.bias});
  params.grammar = source.grammar.grammar;
  params.grammar_type = static_cast<int32_t>(source.grammar.type);
  params.grammar_lazy = source.grammar_lazy;
  for (const common_grammar_trigger& trigger : source.grammar_triggers) {
    params.grammar_triggers.push_back({static_cast<int32_t>(trigger.type), trigger.value, trigger.token});
  }
  params.preserved_tokens.assign(source.preserved_tokens.begin(), source.preserved_tokens.end());
  params.generation_prompt = source.generation_prompt;
  params.reasoning_budget_tokens = source.reasoning_budget_tokens;
  params.reasoning_budget_start = source.reasoning_budget_start;
  params.reasoning_budget_end = source.reasoning_budget_end;
  params.reasoning_budget_forced = source.reasoning_budget_forced;
  return params;
}

void ReadRecommendedSampling(const LlamaVocabulary& vocabulary, common_params_sampling* sampling) {
  const auto read = [&](llama_model_meta_key key) -> std::string {
    char text[512] = {0};
    return llama_model_meta_val_str(vocabulary.model(), llama_model_meta_key_str(key), text, sizeof text) > 0 ? text : "";
  };
  const auto number = [&](llama_model_meta_key key, auto* target, double min, double max) {
    const std::string text = read(key);
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    // A file's nonsense is no reason not to serve it.
    if (end != text.c_str() && value >= min && value <= max) *target = static_cast<std::remove_pointer_t<decltype(target)>>(value);
  };
  if (const std::string names = read(LLAMA_MODEL_META_KEY_SAMPLING_SEQUENCE); !names.empty()) {
    const auto samplers = common_sampler_types_from_names(string_split<std::string>(names, ';'));
    if (!samplers.empty() && samplers.size() <= kSamplersMax) sampling->samplers = samplers;
  }
  number(LLAMA_MODEL_META_KEY_SAMPLING_TOP_K, &sampling->top_k, 0, INT32_MAX);
  number(LLAMA_MODEL_META_KEY_SAMPLING_TOP_P, &sampling->top_p, 0, 1);
  number(LLAMA_MODEL_META_KEY_SAMPLING_MIN_P, &sampling->min_p, 0, 1);
  number(LLAMA_MODEL_META_KEY_SAMPLING_XTC_PROBABILITY, &sampling->xtc_probability, 0, 1);
  number(LLAMA_MODEL_META_KEY_SAMPLING_XTC_THRESHOLD, &sampling->xtc_threshold, 0, 1);
  number(LLAMA_MODEL_META_KEY_SAMPLING_TEMP, &sampling->temp, 0, 1000);
  number(LLAMA_MODEL_META_KEY_SAMPLING_PENALTY_LAST_N, &sampling->penalty_last_n, 0, INT32_MAX);
  number(LLAMA_MODEL_META_KEY_SAMPLING_PENALTY_REPEAT, &sampling->penalty_repeat, 0.01, 1000);
  number(LLAMA_MODEL_META_KEY_SAMPLING_MIROSTAT, &sampling->mirostat, 0, 2);
  number(LLAMA_MODEL_META_KEY_SAMPLING_MIROSTAT_TAU, &sampling->mirostat_tau, 0, 1000);
  number(LLAMA_MODEL_META_KEY_SAMPLING_MIROSTAT_ETA, &sampling->mirostat_eta, 0, 1000);
}

std::optional<ApiError> CheckConstraint(const LlamaVocabulary& vocabulary, const common_params_sampling& sampling, const std::string& param) {
  if (sampling.generation_prompt.size() > kGenerationPromptBytesMax) {
    return BadRequest("messages", "The last message, which the answer is to continue, has more than " + std::to_string(kGenerationPromptBytesMax) + " bytes.");
  }
  if (grammar::LongestRun(sampling.generation_prompt) > grammar::kRunOnAnyStack) {
    return BadRequest("messages", "The last message, which the answer is to continue, has thousands of characters without a break.");
  }
  if (sampling.generation_prompt.find('\0') != std::string::npos) {
    return BadRequest("messages", "The last message, which the answer is to continue, has a NUL character.");
  }
  const std::string& grammar = sampling.grammar.grammar;
  if (grammar.empty()) return std::nullopt;
  const grammar::IsToken is_token = [&](std::string_view token_text) {
    const auto tokens = vocabulary.Tokenize(std::string(token_text), LlamaVocabulary::BeginningOfText::kNo, true);
    return tokens && tokens->size() == 1;
  };
  if (Status status = grammar::CheckGrammar(grammar, {}, vocabulary.size(), is_token); !status.ok()) {
    return BadRequest(param, "\"" + param + "\": " + status.message() + ".");
  }
  try {
    const std::unique_ptr<llama_sampler, SamplerDeleter> parsed(llama_sampler_init_grammar(vocabulary.vocab(), grammar.c_str(), "root"));
    if (parsed == nullptr) return BadRequest(param, "\"" + param + "\": the grammar is not one that llama.cpp can parse.");
    if (sampling.grammar_lazy || !common_grammar_needs_prefill(sampling.grammar)) return std::nullopt;
    for (Token token : PrefillTokens(vocabulary, sampling.generation_prompt)) {
      // llama.cpp aborts on an end of generation inside a grammar.
      if (vocabulary.IsEndOfGeneration(token)) return BadRequest("messages", "The last message ends the answer, so that nothing constrained can follow it.");
      llama_sampler_accept(parsed.get(), token);
    }
  } catch (const std::exception&) {
    return BadRequest(param, "\"" + param + "\": the grammar does not fit the beginning of the answer that the chat template or the last message gives.");
  }
  return std::nullopt;
}

}  // namespace meshnet::text
