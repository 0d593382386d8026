// From a model file and a wish for shards to shard files on disk, for verbs that start their own workers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "cli/memory_need.h"
#include "cli/private_folder.h"
#include "cli/worker_flags.h"
#include "gguf/cut_plan.h"
#include "gguf/model_file.h"
#include "gguf/model_shape.h"
#include "gguf/shard_file.h"

namespace meshnet::cli {

// "A:B" with A below B; nothing for anything else.
std::optional<LayerRange> ParseLayerRange(const std::string& text);

// A whole model's header, read and checked.
struct OpenedModel {
  gguf::ModelFile file;
  gguf::ModelShape shape;
};
// kRefused for a shard: it is named, with its range.
Result<OpenedModel> OpenWholeModel(const std::string& path);

// How the caller wants it split: by cuts, else into `shards` ranges of like weight.
struct SplitWish {
  uint32_t shards = 0;
  std::vector<uint32_t> cuts;
};
// kRefused names architecture, cut and reason; kBadConfiguration a cut that is none.
Result<std::vector<LayerRange>> ChooseSplit(const OpenedModel& model, const SplitWish& wish);

// What the worker of a planned shard will need.
Result<MemoryNeed> PredictMemory(const OpenedModel& model, const gguf::ShardPlan& plan, const WorkerSettings& settings);

// Shard files of one model that may be used; kept for the next time in the cache folder, or only as long as this object lives when there is none.
struct ShardFiles {
  std::vector<std::string> paths;  // in the order of the ranges
  std::optional<PrivateFolder> temporary;
};
// Reuses files whose identity and content fit, cuts the others. Several processes may do this at once. Progress on stderr.
Result<ShardFiles> EnsureShardFiles(const OpenedModel& model, const std::vector<LayerRange>& ranges);

// "smollm2-0-10.gguf" for a path's stem and a range; never the name of a part of a split model.
std::string ShardFileName(const std::string& model_path, LayerRange range);

}  // namespace meshnet::cli
