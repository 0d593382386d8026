// llama-server's sampling parameters as ours, and the proof that a grammar is one that the tail can run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common.h"
#include "protocol/sampling_params.h"
#include "text/llama/llama_vocabulary.h"
#include "text/text_model.h"

namespace meshnet::text {

// Without seed and logprobs. Windows of past tokens are cut to the context.
SamplingParams ToSamplingParams(const common_params_sampling& source, uint32_t context_tokens);

// The defaults that the file recommends (`general.sampling.*`), as llama-server reads them.
void ReadRecommendedSampling(const LlamaVocabulary& vocabulary, common_params_sampling* sampling);

// Nothing when the grammar, if there is one, is one that the tail takes (grammar/bounds.h), llama.cpp parses it and it takes the generation prompt; otherwise
// a 400 at `param`. A grammar that llama.cpp could not parse would leave the answer unconstrained on stock llama-server.
std::optional<ApiError> CheckConstraint(const LlamaVocabulary& vocabulary, const common_params_sampling& sampling, const std::string& param);

}  // namespace meshnet::text
