#include "engine/llama/llama_sampler.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "common.h"
#include "engine/llama/draw_sampler.h"
#include "engine/llama/llama_library.h"
#include "engine/llama/token_logprobs.h"
#include "engine/llama/trigger_watch.h"
#include "grammar/syntax.h"
#include "grammar/text_run.h"
#include "grammar/utf8.h"
#include "llama.h"
#include "protocol/sampling_limits.h"
#include "sampling.h"

namespace meshnet {
namespace {

// Logits divided by less may overflow; the highest one wins long before.
constexpr float kTemperatureMin = 1e-30f;

const llama_vocab* VocabOf(const SamplerModel& model) { return llama_model_get_vocab(model.model); }

std::vector<LogitBias> BiasesOf(const SamplerModel& model, const SamplingParams& p) {
  std::vector<LogitBias> biases = p.logit_bias;
  for (Token token = 0; p.ignore_eos && token < llama_vocab_n_tokens(VocabOf(model)); ++token) {
    if (llama_vocab_is_eog(VocabOf(model), token)) biases.push_back({token, -INFINITY});
  }
  return biases;
}

// llama.cpp's parameters, as its server fills them.
common_params_sampling LlamaParams(const SamplerModel& model, const SamplingParams& p) {
  const auto last_n = [&](int32_t n) {
    const auto context = static_cast<int32_t>(model.context_tokens);
    return n < 0 ? context : std::min(n, context);
  };
  common_params_sampling out;
  out.seed = p.seed == LLAMA_DEFAULT_SEED ? 0 : p.seed;  // the default means "random" to llama.cpp
  out.no_perf = true;
  out.temp = p.temperature < kTemperatureMin ? 0 : p.temperature;
  out.dynatemp_range = p.dynatemp_range;
  out.dynatemp_exponent = p.dynatemp_exponent;
  out.top_k = p.top_k;
  out.top_p = p.top_p;
  out.min_p = p.min_p;
  out.top_n_sigma = p.top_n_sigma;
  out.typ_p = p.typical_p;
  out.xtc_probability = p.xtc_probability;
  out.xtc_threshold = p.xtc_threshold;
  out.min_keep = p.min_keep;
  out.penalty_last_n = last_n(p.repeat_last_n);
  out.penalty_repeat = p.repeat_penalty;
  out.penalty_present = p.presence_penalty;
  out.penalty_freq = p.frequency_penalty;
  out.dry_multiplier = p.dry_multiplier;
  out.dry_base = p.dry_base;
  out.dry_allowed_length = p.dry_allowed_length;
  out.dry_penalty_last_n = last_n(p.dry_penalty_last_n);
  out.dry_sequence_breakers = p.dry_sequence_breakers;
  out.mirostat = p.mirostat;
  out.mirostat_tau = p.mirostat_tau;
  out.mirostat_eta = p.mirostat_eta;
  out.adaptive_target = p.adaptive_target;
  out.adaptive_decay = p.adaptive_decay;
  if (!p.samplers.empty()) out.samplers = common_sampler_types_from_chars(p.samplers);
  for (const LogitBias& bias : BiasesOf(model, p)) out.logit_bias.push_back({bias.token, bias.bias});
  if (!p.grammar.empty()) out.grammar = common_grammar(static_cast<common_grammar_type>(p.grammar_type), p.grammar);
  out.grammar_lazy = p.grammar_lazy;
  for (const GrammarTrigger& trigger : p.grammar_triggers) {
    out.grammar_triggers.push_back({static_cast<common_grammar_trigger_type>(trigger.type), trigger.value, trigger.token});
  }
  out.preserved_tokens.insert(p.preserved_tokens.begin(), p.preserved_tokens.end());
  out.generation_prompt = p.generation_prompt;
  out.reasoning_budget_tokens = p.reasoning_budget_tokens;
  out.reasoning_budget_start = p.reasoning_budget_start;
  out.reasoning_budget_end = p.reasoning_budget_end;
  out.reasoning_budget_forced = p.reasoning_budget_forced;
  return out;
}

// The chain would return the highest biased logit whatever else it does, so it need not run: a batch of greedy sessions stays cheap.
bool IsPlainGreedy(const SamplerModel& model, const SamplingParams& p) {
  int32_t suppressed = 0;
  llama_vocab_get_suppress_tokens(VocabOf(model), &suppressed);
  return p.temperature <= 0 && p.dynatemp_range == 0 && suppressed == 0 && p.samplers.empty() && p.grammar.empty() &&
         p.reasoning_budget_start.empty() && p.repeat_penalty == 1.0f && p.presence_penalty == 0 && p.frequency_penalty == 0 &&
         p.dry_multiplier == 0 && p.mirostat == 0 && p.typical_p >= 1.0f && p.xtc_probability == 0 && !p.post_sampling_probs;
}

bool AnyEndsGeneration(const SamplerModel& model, std::span<const Token> tokens) {
  return std::any_of(tokens.begin(), tokens.end(), [&](Token token) { return llama_vocab_is_eog(VocabOf(model), token); });
}

// Whether the grammar takes what the template has written of the answer already, as common_sampler_init feeds it. Asked before that is called,
// because it loses its memory when the answer is no. Throws what llama.cpp throws.
bool TakesPrompt(const llama_vocab* vocab, const common_grammar& grammar, const std::string& prompt) {
  const llama_sampler_ptr sampler(llama_sampler_init_grammar(vocab, common_grammar_value(grammar).c_str(), "root"));
  if (!sampler) return false;
  const std::vector<llama_token> tokens = common_tokenize(vocab, prompt, false, true);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const std::string piece = common_token_to_piece(vocab, tokens[i], true);
    const auto is_space = [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; };
    if (i == 0 && is_space(piece[0]) && !is_space(prompt[0])) continue;  // some tokenizers put one in front
    llama_sampler_accept(sampler.get(), tokens[i]);
  }
  return true;
}

Status CheckWithModel(const SamplerModel& model, const SamplingParams& params) {
  const llama_vocab* vocab = VocabOf(model);
  if (llama_vocab_type(vocab) == LLAMA_VOCAB_TYPE_NONE) {
    if (!params.grammar.empty() || params.dry_multiplier > 0 || !params.generation_prompt.empty() || !params.reasoning_budget_start.empty() ||
        params.samplers.find('i') != std::string::npos) {
      return Refused("grammar, DRY, infill and reasoning budget need a tokenizer, and this model has none");
    }
  }
  if (params.grammar.empty()) return OkStatus();
  const grammar::IsToken is_token = [&](std::string_view text) {
    llama_token tokens[2];
    return llama_tokenize(vocab, text.data(), static_cast<int32_t>(text.size()), tokens, 2, false, true) == 1;
  };
  // That llama.cpp can be trusted with its rules was found before; only a tokenizer knows what is a token.
  const auto rules = grammar::ReadGrammar(params.grammar, {}, static_cast<uint32_t>(llama_vocab_n_tokens(vocab)), is_token);
  if (!rules.ok()) return rules.status();
  // llama.cpp aborts when a token that ends generation reaches a grammar that is not at its end.
  for (const std::vector<Token>& tokens : params.reasoning_budget_end) {
    if (AnyEndsGeneration(model, tokens)) return Refused("reasoning_budget_end holds a token that ends generation, which cannot be combined with a grammar");
  }
  if (!params.generation_prompt.empty() && AnyEndsGeneration(model, common_tokenize(vocab, params.generation_prompt, false, true))) {
    return Refused("generation_prompt holds a token that ends generation, which cannot be combined with a grammar");
  }
  return OkStatus();
}

}  // namespace

struct TailSampler::State {
  SamplerModel model;
  SamplingParams params;
  size_t accepted = 0;
  bool plain_greedy = false;
  std::vector<LogitBias> biases;   // of plain_greedy, by token
  Draw draw;                       // before the chains that borrow it
  common_sampler_ptr sampler;      // null when plain_greedy
  // Of a lazy grammar that does not hold yet: what tells when, and the sampler that then takes over.
  std::optional<TriggerWatch> watch;
  common_sampler_ptr constrained;

  Status SetUp();
  void MakeSamplers();
  common_sampler_ptr MakeSampler(common_params_sampling llama_params);
  void Accept(std::span<const Token> log, size_t index);
  SampledToken Report(Token token, std::span<const float> logits) const;
};

Status TailSampler::State::SetUp() {
  if (Status status = CheckSamplingParams(params, static_cast<uint32_t>(llama_vocab_n_tokens(VocabOf(model)))); !status.ok()) return status;
  const std::string& prompt = params.generation_prompt;
  if (prompt.find('\0') != std::string::npos || !grammar::IsUtf8(prompt) || grammar::LongestRun(prompt) > grammar::kRunOnAnyStack) {
    return Refused("generation_prompt must be UTF-8 text without more than " + std::to_string(grammar::kRunOnAnyStack) + " characters in a row");
  }
  plain_greedy = IsPlainGreedy(model, params);
  if (plain_greedy) {
    biases = BiasesOf(model, params);
    std::ranges::stable_sort(biases, {}, &LogitBias::token);
    return OkStatus();
  }
  try {
    if (Status status = CheckWithModel(model, params); !status.ok()) return status;
    MakeSamplers();
    return OkStatus();
  } catch (const std::exception&) {  // its text may quote the grammar
    return Refused(params.grammar.empty() ? "llama.cpp cannot set up these sampling parameters"
                                          : "llama.cpp cannot use the grammar with these triggers and this generation prompt");
  }
}

void TailSampler::State::MakeSamplers() {
  draw.seed = params.seed;
  const common_params_sampling whole = LlamaParams(model, params);
  if (!params.grammar.empty() && !params.grammar_lazy && !params.generation_prompt.empty() && common_grammar_needs_prefill(whole.grammar) &&
      !TakesPrompt(VocabOf(model), whole.grammar, params.generation_prompt)) {
    throw std::invalid_argument("the grammar cannot be parsed");
  }
  if (params.grammar.empty() || !params.grammar_lazy) {
    sampler = MakeSampler(whole);
    return;
  }
  common_params_sampling waiting = whole, holding = whole;
  waiting.grammar = common_grammar();
  holding.reasoning_budget_start.clear();  // where the grammar holds, no thought is open
  sampler = MakeSampler(std::move(waiting));
  constrained = MakeSampler(std::move(holding));
  watch.emplace(VocabOf(model), params);
}

// Throws what llama.cpp throws.
common_sampler_ptr TailSampler::State::MakeSampler(common_params_sampling llama_params) {
  common_sampler_ptr made(common_sampler_init(model.model, llama_params));
  llama_sampler* chain = common_sampler_get(made.get());
  const int32_t last = llama_sampler_chain_n(chain) - 1;
  if (std::string_view(llama_sampler_name(llama_sampler_chain_get(chain, last))) == "dist") {
    llama_sampler_free(llama_sampler_chain_remove(chain, last));
    llama_sampler_chain_add(chain, CreateDrawSampler(&draw));
  }
  return made;
}

// Throws when a generated token does not fit the grammar.
void TailSampler::State::Accept(std::span<const Token> log, size_t index) {
  const auto generated = [&](size_t at) { return at >= params.prompt_len.value; };
  common_sampler_accept(sampler.get(), log[index], generated(index));
  if (!watch || !generated(index)) return;
  const std::optional<size_t> first = watch->Add(log[index], index);
  if (!first) return;
  watch.reset();
  sampler = std::move(constrained);
  // Its grammar waits for the same trigger and finds it at once in these last tokens.
  for (size_t i = 0; i <= index; ++i) common_sampler_accept(sampler.get(), log[i], i >= *first);
}

TailSampler::TailSampler(std::unique_ptr<State> state) : state_(std::move(state)) {}
TailSampler::~TailSampler() = default;

Result<std::unique_ptr<TailSampler>> TailSampler::Create(const SamplerModel& model, const SamplingParams& params) {
  auto state = std::make_unique<State>();
  state->model = model;
  state->params = params;
  if (Status status = state->SetUp(); !status.ok()) return status;
  return std::unique_ptr<TailSampler>(new TailSampler(std::move(state)));
}

const SamplingParams& TailSampler::params() const { return state_->params; }
size_t TailSampler::accepted() const { return state_->accepted; }

Status TailSampler::Accept(std::span<const Token> log) {
  MESHNET_CHECK(state_->accepted <= log.size());
  for (; state_->accepted < log.size(); ++state_->accepted) {
    if (state_->plain_greedy) continue;
    const Token token = log[state_->accepted];
    const bool generated = state_->accepted >= state_->params.prompt_len.value;
    const Status misfit = Failure("the token at position " + std::to_string(state_->accepted) + " does not fit the session's grammar");
    if (generated && !state_->params.grammar.empty() && llama_vocab_is_eog(VocabOf(state_->model), token)) return misfit;
    try {
      state_->Accept(log, state_->accepted);
    } catch (const std::exception&) {  // its text quotes the token
      return misfit;
    }
  }
  return OkStatus();
}

SampledToken TailSampler::State::Report(Token token, std::span<const float> logits) const {
  SampledToken result;
  result.token = token;
  result.end_of_generation = llama_vocab_is_eog(VocabOf(model), token);
  if (!params.logprobs_wanted && params.logprobs == 0) return result;
  if (!params.post_sampling_probs) {
    TokenLogprobs logprobs = LogprobsOf(logits, token, params.logprobs);
    result.logprob = logprobs.of_token;
    result.top = std::move(logprobs.top);
    return result;
  }
  const llama_token_data_array& left = *common_sampler_get_candidates(sampler.get(), true);
  result.logprob = -INFINITY;
  for (size_t i = 0; i < left.size; ++i) {
    const float logprob = std::log(left.data[i].p);
    if (left.data[i].id == token) result.logprob = logprob;
    if (i < params.logprobs && left.data[i].p > 0) result.top.push_back({left.data[i].id, logprob});
  }
  return result;
}

Result<SampledToken> TailSampler::Sample(llama_context* context, int32_t row, uint32_t position) {
  const float* logits = llama_get_logits_ith(context, row);
  MESHNET_CHECK(logits);
  const std::span<const float> all(logits, static_cast<size_t>(llama_vocab_n_tokens(VocabOf(state_->model))));
  const auto nothing_left = [&] { return Refused("the sampling parameters leave no token at position " + std::to_string(position)); };
  if (state_->plain_greedy) {
    const std::optional<Token> highest = HighestToken(all, state_->biases);
    return highest ? Result<SampledToken>(state_->Report(*highest, all)) : nothing_left();
  }
  state_->draw.position = position;
  state_->draw.attempt = 0;
  state_->draw.nothing_left = false;
  Token token = 0;
  try {
    token = common_sampler_sample(state_->sampler.get(), context, row);
  } catch (const std::exception&) {
    return Failure("llama.cpp's sampler failed at position " + std::to_string(position));
  }
  if (state_->draw.nothing_left) return nothing_left();
  return state_->Report(token, all);
}

}  // namespace meshnet
