// The metadata of a shard: what of the model's keys it keeps, slices, replaces or adds. Pure.
#pragma once

#include <vector>

#include "base/ids.h"
#include "gguf/model_file.h"
#include "gguf/model_shape.h"

namespace meshnet::gguf {

// Preconditions: the architecture is certified and `range` is a legal range of it. meshnet.holes and what needs the manifest is not in it.
std::vector<MetadataEntry> PlanMetadata(const ModelFile& file, const ModelShape& shape, LayerRange range);

// A window model's range that holds none of its window layers.
bool IsWindowless(const ModelShape& shape, LayerRange range);

// deepseek2: a range of a full-size model whose length stock code takes for that of a lite one.
bool IsLiteByAccident(const ModelShape& shape, LayerRange range);

}  // namespace meshnet::gguf
