// Refuses sampling parameters on which llama.cpp's samplers would abort, loop or take memory without bound. Pure.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/status.h"
#include "protocol/sampling_params.h"

namespace meshnet {

struct SamplingBounds {
  uint32_t vocabulary_size = 0;
  uint32_t logprobs_max = 1000;
  size_t logit_biases_max = 1u << 20;
  size_t strings_max = 64;          // sequence breakers, triggers
  size_t string_bytes_max = 1024;   // of one of them
  size_t token_lists_max = 64;
  size_t tokens_max = 4096;         // of one list
  size_t generation_prompt_bytes_max = 64 * 1024;
};

// kRefused names the parameter, its value when it is a number, and what is allowed. The grammar itself: grammar/bounds.h.
Status CheckSamplingBounds(const SamplingParams& params, const SamplingBounds& bounds);

// Whether std::regex can run a trigger pattern in bounded time and stack: it recurses once per character of a repetition, and llama.cpp
// searches the whole text again after each token. Repetitions without bound are taken only behind \s, \d, \w and plain characters.
Status CheckTriggerPattern(std::string_view pattern);

}  // namespace meshnet
