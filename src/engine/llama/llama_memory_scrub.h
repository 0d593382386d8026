// Zeroes what is not finite in KV cells and recurrent state. A masked cell still takes part in attention with weight 0, and 0 * NaN is NaN: a
// value that overflowed once would reach later owners of its cell, and neighbours in a shared pool.
#pragma once

#include <cstdint>
#include <span>

#include "ggml.h"

namespace meshnet {

// Non-finite elements of `memory` tensors become zeros (in quantised types their whole row does); all else keeps every bit. Returns how many
// rows were changed.
uint64_t ScrubNonFinite(std::span<ggml_tensor* const> memory);

}  // namespace meshnet
