// The bounds of SamplingParams, in one place: the gateway refuses by them before any work, the wire before a step is queued, the tail before
// llama.cpp sees a value. Wide on purpose: out is only what would make llama.cpp abort, loop, take memory without bound or compute nonsense.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

#include "base/status.h"
#include "protocol/sampling_params.h"

namespace meshnet {

struct FloatLimit {
  const char* field;
  float SamplingParams::*member;
  float low, high;
};
inline constexpr float kSamplingNumberMax = 1e6f;
inline constexpr FloatLimit kFloatLimits[] = {
    {"temperature", &SamplingParams::temperature, -kSamplingNumberMax, kSamplingNumberMax},
    {"dynatemp_range", &SamplingParams::dynatemp_range, 0, kSamplingNumberMax},
    {"dynatemp_exponent", &SamplingParams::dynatemp_exponent, 0, 100},
    {"top_p", &SamplingParams::top_p, 0, kSamplingNumberMax},
    {"min_p", &SamplingParams::min_p, 0, 1},
    {"top_n_sigma", &SamplingParams::top_n_sigma, -kSamplingNumberMax, kSamplingNumberMax},
    {"typical_p", &SamplingParams::typical_p, 0, kSamplingNumberMax},
    {"xtc_probability", &SamplingParams::xtc_probability, 0, 1},
    {"xtc_threshold", &SamplingParams::xtc_threshold, 0, 1},
    {"repeat_penalty", &SamplingParams::repeat_penalty, 1e-6f, kSamplingNumberMax},
    {"presence_penalty", &SamplingParams::presence_penalty, -kSamplingNumberMax, kSamplingNumberMax},
    {"frequency_penalty", &SamplingParams::frequency_penalty, -kSamplingNumberMax, kSamplingNumberMax},
    {"dry_multiplier", &SamplingParams::dry_multiplier, 0, kSamplingNumberMax},
    {"dry_base", &SamplingParams::dry_base, 0, kSamplingNumberMax},
    {"mirostat_tau", &SamplingParams::mirostat_tau, 0, kSamplingNumberMax},
    {"mirostat_eta", &SamplingParams::mirostat_eta, 0, kSamplingNumberMax},
    {"adaptive_target", &SamplingParams::adaptive_target, -kSamplingNumberMax, 1},
    {"adaptive_decay", &SamplingParams::adaptive_decay, 0, 0.99f},
};

struct IntegerLimit {
  const char* field;
  int32_t SamplingParams::*member;
  int32_t low, high;
};
inline constexpr int32_t kSamplingTokensMax = 1 << 24;  // a window of past tokens, a length in tokens
inline constexpr IntegerLimit kIntegerLimits[] = {
    {"min_keep", &SamplingParams::min_keep, 0, kSamplingTokensMax},
    {"repeat_last_n", &SamplingParams::repeat_last_n, -1, kSamplingTokensMax},
    {"dry_allowed_length", &SamplingParams::dry_allowed_length, 0, kSamplingTokensMax},
    {"dry_penalty_last_n", &SamplingParams::dry_penalty_last_n, -1, kSamplingTokensMax},
    {"mirostat", &SamplingParams::mirostat, 0, 2},
    {"grammar_type", &SamplingParams::grammar_type, 0, 3},
    {"reasoning_budget_tokens", &SamplingParams::reasoning_budget_tokens, -1, std::numeric_limits<int32_t>::max()},
};

inline constexpr size_t kSamplersMax = 32;
inline constexpr std::string_view kSamplerLetters = "dkypsmtxiea";
inline constexpr size_t kLogitBiasMax = 20'000;
inline constexpr float kLogitBiasSumMax = 1e6f;  // of one token's; beyond, llama.cpp's partial sort of candidates overflows
// llama.cpp's infill compares each candidate with each other one: a whole vocabulary would hold the worker for seconds a token.
inline constexpr int32_t kInfillCandidatesMax = 256;
inline constexpr size_t kSequenceBreakersMax = 64;
inline constexpr size_t kSequenceBreakerBytesMax = 256;
inline constexpr size_t kGrammarBytesMax = 256u << 10;
inline constexpr size_t kGrammarTriggersMax = 512;  // some chat templates have one per tool
inline constexpr size_t kGrammarTriggerBytesMax = 1024;
inline constexpr size_t kGenerationPromptBytesMax = 64u << 10;
inline constexpr size_t kTokenListMax = 4096;
inline constexpr size_t kReasoningEndsMax = 64;
inline constexpr uint32_t kLogprobsMax = 1024;

// llama.cpp searches a waiting answer with std::regex, which backtracks without bound and recurses once for each character that a repetition
// matches. So only the patterns of llama.cpp's own chat templates are taken (common/parsers), none that a peer made up.
inline constexpr std::string_view kTriggerPatterns[] = {
    R"(^\s+to$)",
    R"(^<\|channel\|>(?:commentary|analysis)\s+to=functions$)",
    R"(<\|start\|>assistant(\s+to))",
    R"(<\|start\|>assistant(<\|channel\|>(?:commentary|analysis)\s+to))",
    ">>>(?!all)",
};

// kRefused names the first field that is out of bounds and what is allowed: "top_p must be from 0 to 1000000". Pure. The grammar itself and the
// text that advances it: grammar/bounds.h.
Status CheckSamplingParams(const SamplingParams& params, uint32_t vocabulary_size);

}  // namespace meshnet
