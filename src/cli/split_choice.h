// Where to cut a model so that its stages weigh alike. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "gguf/cut_plan.h"
#include "gguf/model_shape.h"

namespace meshnet::cli {

// Splits [0, layer_count) into `shard_count` ranges at legal cuts so that the heaviest is as light as can be. The output matrix is read whole
// for every token, so `output_bytes` count as the tail's. kBadConfiguration: more shards than layers; kRefused: too few legal cuts.
Result<std::vector<LayerRange>> ChooseRanges(const gguf::ModelShape& shape, const gguf::LegalCuts& legal, uint32_t shard_count, uint64_t output_bytes);

// Bytes of the matrix that turns the last hidden state into logits: `output.weight`, or the embedding of a tied model.
uint64_t OutputBytes(const gguf::ModelFile& file);

}  // namespace meshnet::cli
