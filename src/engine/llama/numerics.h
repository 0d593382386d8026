// What decides the last bits of a result: which weights numerics mode exact covers, and the fingerprint that a shard publishes.
#pragma once

#include <span>
#include <string>

#include "base/status.h"
#include "engine/llama/engine_settings.h"
#include "gguf/model_file.h"
#include "protocol/describe.h"

namespace meshnet {

// kRefused names a tensor and its type when results could depend on step shapes (docs/numerics.md). Vectors (norms, biases) may have
// any type.
// `holes` are tensors that this stage never reads.
Status CheckExactWeights(std::span<const gguf::TensorInfo> tensors, std::span<const std::string> holes);

NumericsFingerprint FingerprintOf(const EngineSettings& settings, uint32_t context_tokens);

}  // namespace meshnet
