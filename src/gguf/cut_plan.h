// Which cuts of a model are legal, and what a shard of a layer range consists of. Pure: works on a parsed header.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "gguf/model_file.h"
#include "gguf/model_shape.h"

namespace meshnet::gguf {

struct LegalCuts {
  std::vector<uint32_t> cuts;    // sorted; a cut c splits [.., c) from [c, ..)
  std::string reason;            // why there are none, or why not all; empty when every cut is legal
};
LegalCuts FindLegalCuts(const ModelFile& file, const ModelShape& shape);

// What a shard stores of one tensor.
struct PlannedTensor {
  std::string name;              // in the shard: layers renumbered from 0
  std::string original_name;
  uint32_t type = 0;             // ggml type id
  std::vector<uint64_t> dims;
  uint64_t bytes = 0;
  bool hole = false;             // demanded by stock code, never read by this stage: smallest legal type and shape, no data
};

struct ShardPlan {
  LayerRange range;
  std::vector<PlannedTensor> tensors;
  std::vector<MetadataEntry> metadata;  // complete, meshnet.* included
  uint64_t bytes = 0;            // data section
  uint64_t hole_bytes = 0;
};

// kRefused with architecture, cut and reason when a border of `range` is not a legal cut.
Result<ShardPlan> PlanShard(const ModelFile& file, const ModelShape& shape, LayerRange range);

// [0,c1) [c1,c2) … for sorted cuts. kRefused names an illegal one; kUsage-like mistakes (0, n, unsorted) are kBadConfiguration.
Result<std::vector<LayerRange>> RangesOfCuts(const ModelShape& shape, const std::vector<uint32_t>& cuts);

}  // namespace meshnet::gguf
