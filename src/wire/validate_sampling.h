// Sampling parameters of hostile messages, checked by protocol/sampling_limits.h and grammar/bounds.h.
#pragma once

#include <variant>

#include "meshnet/shard/v1/shard.pb.h"
#include "protocol/refusal.h"
#include "protocol/sampling_params.h"

namespace meshnet {

std::variant<SamplingParams, Refusal> ValidateSampling(const shard::v1::SamplingParams& wire, uint32_t vocabulary_size);

}  // namespace meshnet
