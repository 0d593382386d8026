#include "text/answer_fields.h"

#include <algorithm>
#include <array>
#include <cfloat>
#include <climits>
#include <cmath>
#include <string_view>

#include "protocol/sampling_limits.h"

namespace meshnet::text {
namespace {

using nlohmann::ordered_json;

constexpr KnownField kIgnored[] = {
    {"user", "a name for the operator's statistics"},
    {"metadata", "labels for OpenAI's dashboard"},
    {"safety_identifier", "a name for the operator's statistics"},
    {"service_tier", "there is one tier"},
    {"prompt_cache_retention", "a hint; sessions stay until their TTL or eviction"},
    {"prediction", "a hint that only speeds up; the answer is the same"},
    {"verbosity", "a hint that no GGUF model knows"},
    {"timings_per_token", "adds figures to chunks, not to the answer"},
    {"return_progress", "adds figures to chunks, not to the answer"},
    {"sse_ping_interval", "the gateway pings often enough for every proxy"},
};

constexpr KnownField kRefused[] = {
    {"functions", "it is deprecated, use \"tools\""},
    {"function_call", "it is deprecated, use \"tool_choice\""},
    {"audio", "this gateway serves text only"},
    {"web_search_options", "this gateway has no web search"},
    {"enable_thinking", "put it into \"chat_template_kwargs\""},
    {"chat_format", "it follows from the chat template"},
    {"chat_parser", "it follows from the chat template"},
    {"generation_prompt", "it follows from the chat template"},
    {"grammar_lazy", "it follows from \"tools\""},
    {"grammar_triggers", "it follows from \"tools\""},
    {"grammar_type", "it follows from \"tools\" and \"response_format\""},
    {"preserved_tokens", "it follows from the chat template"},
    {"message_delimiters", "it follows from the chat template"},
    {"previous_response_id", "this gateway keeps no conversations, send all messages"},
};

struct NeutralField {
  const char* name;
  const char* neutral;  // JSON: an array of the values that ask for nothing
  const char* reason;
};

constexpr NeutralField kNeutral[] = {
    {"store", "[false]", "this gateway stores no answers"},
    {"modalities", "[[\"text\"]]", "this gateway serves text only"},
    {"echo", "[false]", "the prompt cannot be returned yet"},
    {"best_of", "[1]", "only one candidate is generated for each choice"},
    {"suffix", "[\"\"]", "text cannot be inserted in front of a suffix yet"},
    {"n_keep", "[0, -1]", "the context is never shifted"},
    {"n_discard", "[0]", "the context is never shifted"},
    {"n_indent", "[0]", "it is not supported yet"},
    {"n_cache_reuse", "[0]", "only common prefixes are reused"},
    {"t_max_predict_ms", "[-1, 0]", "it is not supported yet"},
    {"t_max_prompt_ms", "[-1, 0]", "it is not supported yet"},
    {"id_slot", "[-1]", "sessions are chosen by their prefix; use \"prompt_cache_key\" to keep requests together"},
    {"lora", "[[]]", "adapters over shards are not supported yet"},
    {"response_fields", "[[]]", "answers always have all fields"},
    {"backend_sampling", "[false]", "sampling runs on the CPU of the last worker"},
    {"reasoning_control", "[false]", "a running answer cannot be changed"},
    {"verbose", "[false]", "answers carry no debugging data"},
    {"parse_tool_calls", "[true]", "tool calls are always parsed"},
};

struct NumberField {
  const char* name;
  double min;
  double max;
};
// Where a client may ask for less than the tail takes. All other numbers have the tail's own limits (protocol/sampling_limits.h).
constexpr NumberField kNarrower[] = {{"temperature", 0, kSamplingNumberMax}, {"top_p", 0, 1}, {"dry_base", 1, kSamplingNumberMax}};

struct IntegerField {
  const char* name;
  int64_t min;
  int64_t max;
};
constexpr IntegerField kIntegers[] = {
    {"top_k", -1, INT32_MAX}, {"min_keep", 0, kSamplingTokensMax}, {"repeat_last_n", 0, INT32_MAX}, {"dry_penalty_last_n", 0, INT32_MAX},
    {"dry_allowed_length", 0, kSamplingTokensMax}, {"mirostat", 0, 2},
};

// Names of llama.cpp's samplers (common/sampling.cpp).
constexpr std::array<std::string_view, 27> kSamplerNames = {
    "dry", "top_k", "top-k", "topk", "top_p", "top-p", "topp", "nucleus", "top_n_sigma", "top-n-sigma", "topnsigma", "typ_p", "typ-p", "typp", "typ",
    "min_p", "min-p", "minp", "temperature", "temp", "xtc", "infill", "penalties", "adaptive_p", "adaptive-p", "adaptivep", "typical_p"};

void ReadStops(FieldReader& fields, std::vector<std::string>* stops) {
  const ordered_json* stop = fields.Value("stop");
  if (stop == nullptr) return;
  if (!stop->is_string() && !stop->is_array()) return fields.FailField("stop", "must be a string or an array of strings.");
  const ordered_json list = stop->is_string() ? ordered_json::array({*stop}) : *stop;
  if (list.size() > kStopsMax) return fields.FailField("stop", "has more than " + std::to_string(kStopsMax) + " strings.");
  for (const ordered_json& word : list) {
    if (!word.is_string()) return fields.FailField("stop", "must be a string or an array of strings.");
    if (word.get_ref<const std::string&>().size() > kStopBytesMax) return fields.FailField("stop", "has a string of more than " + std::to_string(kStopBytesMax) + " bytes.");
    stops->push_back(word.get<std::string>());
  }
}

void ReadLogprobs(FieldReader& fields, ApiKind kind, AnswerFields* answer) {
  if (kind == ApiKind::kChat) {
    answer->logprobs_wanted = fields.Boolean("logprobs").value_or(false);
    if (auto top = fields.Integer("top_logprobs", 0, kTopLogprobsMax)) {
      if (!answer->logprobs_wanted) fields.FailField("top_logprobs", "needs \"logprobs\" to be true.");
      answer->logprobs = static_cast<uint32_t>(*top);
    }
  } else if (auto top = fields.Integer("logprobs", 0, kTopLogprobsMax)) {
    answer->logprobs_wanted = true;
    answer->logprobs = static_cast<uint32_t>(*top);
  }
  if (auto probabilities = fields.Integer("n_probs", 0, kTopLogprobsMax); probabilities && *probabilities > 0) {
    answer->logprobs_wanted = true;
    answer->logprobs = static_cast<uint32_t>(*probabilities);
  }
  answer->post_sampling_probs = fields.Boolean("post_sampling_probs").value_or(false);
}

void ReadLogitBias(FieldReader& fields, uint32_t vocabulary_size, ordered_json* sampling) {
  const ordered_json* bias = fields.Value("logit_bias");
  if (bias == nullptr) return;
  if (!bias->is_object() && !bias->is_array()) return fields.FailField("logit_bias", "must be an object or an array of pairs.");
  // llama.cpp tokenizes it, on this thread's stack.
  constexpr size_t kBiasTextBytesMax = 256;
  if (bias->size() > kLogitBiasMax) return fields.FailField("logit_bias", "has more than " + std::to_string(kLogitBiasMax) + " entries.");
  ordered_json pairs = ordered_json::array();
  const auto add = [&](ordered_json token, const ordered_json& value) {
    const bool banned = value.is_boolean() && !value.get<bool>();
    if (!banned && (!value.is_number() || std::fabs(value.get<double>()) > FLT_MAX)) {
      return fields.FailField("logit_bias", "must give each token a number, or false to ban it.");
    }
    if (token.is_string() && token.get_ref<const std::string&>().size() > kBiasTextBytesMax) {
      return fields.FailField("logit_bias", "names a text of more than " + std::to_string(kBiasTextBytesMax) + " bytes.");
    }
    if (!token.is_string() && (!token.is_number_integer() || token.get<int64_t>() < 0 || token.get<int64_t>() >= vocabulary_size)) {
      return fields.FailField("logit_bias", "names a token that is not between 0 and " + std::to_string(vocabulary_size - 1) + ".");
    }
    pairs.push_back(ordered_json::array({std::move(token), value}));
  };
  if (bias->is_array()) {
    for (const ordered_json& pair : *bias) {
      if (!pair.is_array() || pair.size() != 2) return fields.FailField("logit_bias", "must hold pairs of a token and a bias.");
      add(pair[0], pair[1]);
    }
  } else {
    for (const auto& [name, value] : bias->items()) {
      const bool number = !name.empty() && name.size() < 10 && name.find_first_not_of("0123456789") == std::string::npos;
      if (!number && (name.empty() || name.find_first_not_of("-0123456789") == std::string::npos)) {
        return fields.FailField("logit_bias", "names a token that is not between 0 and " + std::to_string(vocabulary_size - 1) + ".");
      }
      add(number ? ordered_json(std::stol(name)) : ordered_json(name), value);
    }
  }
  (*sampling)["logit_bias"] = std::move(pairs);
}

void ReadSamplers(FieldReader& fields, ordered_json* sampling) {
  const ordered_json* samplers = fields.Value("samplers");
  if (samplers == nullptr) return;
  const auto known = [](const ordered_json& name) {
    return name.is_string() && std::find(kSamplerNames.begin(), kSamplerNames.end(), name.get_ref<const std::string&>()) != kSamplerNames.end();
  };
  // An empty chain cannot be told from the default one in SamplingParams.
  if (samplers->empty()) return fields.FailField("samplers", "must not be empty.");
  if (samplers->is_string() && samplers->get_ref<const std::string&>().empty()) return fields.FailField("samplers", "must not be empty.");
  if (samplers->is_string() && samplers->get_ref<const std::string&>().size() <= kSamplersMax) {
    const std::string letters = samplers->get<std::string>();
    if (letters.find_first_not_of(kSamplerLetters) != std::string::npos) {
      return fields.FailField("samplers", "has a letter that is none of \"" + std::string(kSamplerLetters) + "\".");
    }
  } else if (!samplers->is_array() || samplers->size() > kSamplersMax || !std::all_of(samplers->begin(), samplers->end(), known)) {
    return fields.FailField("samplers", "must be an array of sampler names (dry, top_k, top_p, min_p, typ_p, top_n_sigma, temperature, xtc, penalties, "
                                        "infill, adaptive_p) or a string of their letters.");
  }
  if (samplers->is_array()) {
    ordered_json names = ordered_json::array();
    for (const ordered_json& name : *samplers) names.push_back(name == "typical_p" ? "typ_p" : name.get<std::string>());
    (*sampling)["samplers"] = std::move(names);
  } else {
    (*sampling)["samplers"] = *samplers;
  }
}

void ReadBreakers(FieldReader& fields, ordered_json* sampling) {
  const ordered_json* breakers = fields.Array("dry_sequence_breakers", kSequenceBreakersMax);
  if (breakers == nullptr) return;
  const bool strings = std::all_of(breakers->begin(), breakers->end(), [](const ordered_json& breaker) {
    return breaker.is_string() && !breaker.get_ref<const std::string&>().empty() && breaker.get_ref<const std::string&>().size() <= 64 &&
           breaker.get_ref<const std::string&>().find('\0') == std::string::npos;
  });
  if (breakers->empty() || !strings) return fields.FailField("dry_sequence_breakers", "must be an array of 1 to 64 strings of at most 64 bytes.");
  (*sampling)["dry_sequence_breakers"] = *breakers;
}

// 64-bit seeds, as OpenAI allows, are folded to the sampler's 32 bits. llama.cpp takes 2^32-1 for "random", so it is never used.
uint32_t FoldSeed(uint64_t seed) {
  const uint32_t folded = static_cast<uint32_t>(seed) ^ static_cast<uint32_t>(seed >> 32);
  return folded == UINT32_MAX ? 0 : folded;
}

}  // namespace

std::span<const KnownField> IgnoredFields() { return kIgnored; }
std::span<const KnownField> RefusedFields() { return kRefused; }

void ReadNeutralFields(FieldReader& fields) {
  for (const NeutralField& field : kNeutral) {
    const ordered_json* value = fields.Value(field.name);
    if (value == nullptr) continue;
    const ordered_json neutral = ordered_json::parse(field.neutral);
    if (std::find(neutral.begin(), neutral.end(), *value) != neutral.end()) continue;
    fields.FailField(field.name, std::string("is not supported: ") + field.reason + ".");
  }
}

AnswerFields ReadAnswerFields(FieldReader& fields, ApiKind kind) {
  AnswerFields answer;
  answer.model = fields.String("model", 1024).value_or("");
  answer.stream = fields.Boolean("stream").value_or(false);
  if (const ordered_json* options = fields.Object("stream_options")) {
    static constexpr KnownField kIgnoredOptions[] = {{"include_obfuscation", "chunks are never padded"}};
    FieldReader inner(*options, "stream_options.");
    answer.include_usage = inner.Boolean("include_usage").value_or(false);
    inner.RefuseRest(kIgnoredOptions, {});
    if (!inner.ok()) fields.Fail(inner.error().param, inner.error().message);
  }
  // As llama-server: the last of these that is there counts, and -1 means "until the context is full".
  for (const char* name : {"max_tokens", "max_completion_tokens", "n_predict"}) {
    const auto limit = fields.Integer(name, -1, INT32_MAX);
    if (!limit) continue;
    if (*limit == 0) fields.FailField(name, "must be at least 1.");
    answer.tokens_max = static_cast<uint32_t>(std::max<int64_t>(0, *limit));
  }
  for (const char* name : {"n", "n_cmpl"}) {
    if (const auto count = fields.Integer(name, 1, kChoicesMax)) answer.count = static_cast<uint32_t>(*count);
  }
  if (const auto seed = fields.Integer("seed", INT64_MIN, INT64_MAX); seed && *seed != -1) {
    if (*seed < 0) fields.FailField("seed", "must be -1 (random) or not negative.");
    if (*seed != UINT32_MAX) answer.seed = FoldSeed(static_cast<uint64_t>(*seed));
  }
  ReadStops(fields, &answer.stops);
  ReadLogprobs(fields, kind, &answer);
  answer.prompt_cache_key = fields.String("prompt_cache_key", 1024).value_or("");
  answer.reuse = fields.Boolean("cache_prompt").value_or(true);
  answer.return_tokens = fields.Boolean("return_tokens").value_or(false);
  return answer;
}

ordered_json ReadSamplingFields(FieldReader& fields, uint32_t context_tokens, uint32_t vocabulary_size) {
  ordered_json sampling = ordered_json::object();
  for (const FloatLimit& limit : kFloatLimits) {
    double low = limit.low, high = limit.high;
    for (const NumberField& field : kNarrower) {
      if (std::string_view(field.name) != limit.field) continue;
      low = std::max(low, field.min);
      high = std::min(high, field.max);
    }
    if (const auto value = fields.Number(limit.field, low, high)) sampling[limit.field] = *value;
  }
  for (const IntegerField& field : kIntegers) {
    if (const auto value = fields.Integer(field.name, field.min, field.max)) sampling[field.name] = std::max<int64_t>(0, *value);
  }
  for (const char* window : {"repeat_last_n", "dry_penalty_last_n"}) {
    if (sampling.contains(window)) sampling[window] = std::min<int64_t>(sampling[window].get<int64_t>(), context_tokens);
  }
  if (const auto ignore = fields.Boolean("ignore_eos")) sampling["ignore_eos"] = *ignore;
  ReadSamplers(fields, &sampling);
  ReadBreakers(fields, &sampling);
  ReadLogitBias(fields, vocabulary_size, &sampling);
  return sampling;
}

}  // namespace meshnet::text
