#include "gguf/cut_plan.h"

#include <algorithm>

#include "gguf/architecture_table.h"
#include "gguf/ggml_types.h"
#include "gguf/gguf_writer.h"
#include "gguf/header_file.h"
#include "gguf/layer_name.h"
#include "gguf/shard_keys.h"
#include "gguf/shard_metadata.h"

namespace meshnet::gguf {
namespace {

// What a tensor outside the layers is for.
enum class Role { kEveryStage, kTokenInput, kPositionInput, kOutput, kTailOnly, kUnknown };

Role RoleOf(std::string_view name) {
  if (name == "rope_freqs.weight" || name == "rope_factors_long.weight" || name == "rope_factors_short.weight") return Role::kEveryStage;
  if (name == "token_embd.weight") return Role::kTokenInput;
  if (name == "position_embd.weight") return Role::kPositionInput;
  if (name == "output.weight" || name == "output.bias" || name == "output_norm.weight" || name == "output_norm.bias") return Role::kOutput;
  // Behind the output, and nowhere demanded: scales of its type, and heads that rerankers and embedding models have.
  for (std::string_view known : {"output.scale", "output.input_scale", "cls.weight", "cls.bias", "cls.output.weight", "cls.output.bias",
                                 "cls.norm.weight", "dense_2.weight", "dense_2.bias", "dense_3.weight"}) {
    if (name == known) return Role::kTailOnly;
  }
  return Role::kUnknown;
}

// The smallest type whose blocks fill a row and that the CPU backend both multiplies and takes rows from.
const GgmlType& SmallestType(uint64_t row_elements) {
  for (const char* name : {"q1_0", "q2_0", "q4_0"}) {
    const GgmlType* type = FindGgmlType(std::string_view(name));
    if (row_elements % type->block_elements == 0) return *type;
  }
  return *FindGgmlType(std::string_view("f16"));
}

// A tail beyond the head never looks up a token, but stock code demands token_embd.weight. Where it also takes that tensor for the output
// of a tied model, the tail of an untied one is written as if it were tied, with the output as the embedding: no hole, no memory for one.
bool StoresOutputAsEmbedding(const ModelFile& file, const ModelShape& shape, LayerRange range) {
  const TensorInfo* output = file.FindTensor("output.weight");
  const TensorInfo* embedding = file.FindTensor("token_embd.weight");
  return range.begin != 0 && range.end == shape.layer_count && output != nullptr && embedding != nullptr && output->dims == embedding->dims &&
         !FindArchitecture(shape.architecture)->output_demanded && file.FindTensor("output.scale") == nullptr &&
         file.FindTensor("output.input_scale") == nullptr;
}

class TensorPlanner {
 public:
  TensorPlanner(const ModelFile& file, const ModelShape& shape, LayerRange range)
      : file_(file), shape_(shape), range_(range), head_(range.begin == 0), tail_(range.end == shape.layer_count),
        output_as_embedding_(StoresOutputAsEmbedding(file, shape, range)) {}

  std::vector<PlannedTensor> Plan() {
    for (const TensorInfo& tensor : file_.tensors()) {
      const std::optional<LayerName> layer = ParseLayerName(tensor.name);
      if (!layer.has_value()) {
        PlanShared(tensor);
      } else if (layer->layer >= range_.begin && layer->layer < range_.end) {
        Keep(tensor, FormatLayerName(layer->layer - range_.begin, layer->rest));
      }
    }
    // Holes stand together at the end, so that an engine can give their pages back in one piece.
    planned_.insert(planned_.end(), holes_.begin(), holes_.end());
    return std::move(planned_);
  }

 private:
  void PlanShared(const TensorInfo& tensor) {
    switch (RoleOf(tensor.name)) {
      case Role::kTokenInput:
        if (head_ || (tail_ && shape_.tied)) {
          Keep(tensor, tensor.name);
        } else if (!output_as_embedding_) {
          VocabularyHole(tensor);
        }
        return;
      case Role::kPositionInput:
        // Its rows are added to injected hidden states too: beyond the head they must be zeros of the same shape.
        if (head_) {
          Keep(tensor, tensor.name);
        } else {
          Hole(tensor, tensor.type, tensor.dims);
        }
        return;
      case Role::kOutput:
        if (tail_) {
          Keep(tensor, output_as_embedding_ && tensor.name == "output.weight" ? "token_embd.weight" : tensor.name);
        } else if (tensor.name.starts_with("output_norm.")) {
          Hole(tensor, tensor.type, tensor.dims);
        } else {
          VocabularyHole(tensor);
        }
        return;
      case Role::kTailOnly:
        if (tail_) Keep(tensor, tensor.name);
        return;
      case Role::kEveryStage:
      case Role::kUnknown:
        Keep(tensor, tensor.name);
        return;
    }
  }

  void Keep(const TensorInfo& tensor, std::string name) {
    planned_.push_back({std::move(name), tensor.name, tensor.type, tensor.dims, tensor.bytes, false});
  }

  void Hole(const TensorInfo& tensor, uint32_t type, std::vector<uint64_t> dims) {
    const uint64_t bytes = TensorBytes(*FindGgmlType(type), dims).value_or(0);
    holes_.push_back({tensor.name, tensor.name, type, std::move(dims), bytes, true});
  }

  // A tensor with a row (or a value) per token: one of them where the shard has no vocabulary, else all, as small as they get.
  void VocabularyHole(const TensorInfo& tensor) {
    const bool middle = !head_ && !tail_;
    if (tensor.dims.size() == 1) return Hole(tensor, kTypeF32, {middle ? 1 : tensor.dims[0]});
    if (middle) return Hole(tensor, kTypeF32, {tensor.dims[0], 1});
    Hole(tensor, SmallestType(tensor.dims[0]).id, {tensor.dims[0], tensor.dims[1]});
  }

  const ModelFile& file_;
  const ModelShape& shape_;
  const LayerRange range_;
  const bool head_;
  const bool tail_;
  const bool output_as_embedding_;
  std::vector<PlannedTensor> planned_;
  std::vector<PlannedTensor> holes_;
};

std::string Named(const ModelShape& shape) { return "architecture \"" + Printable(shape.architecture) + "\""; }

// Why no cut of this model at all may be trusted; empty when there is no such reason.
std::string WholeModelRefusal(const ModelShape& shape) {
  const ArchitectureRule* rule = FindArchitecture(shape.architecture);
  if (rule == nullptr) return Named(shape) + " is not cut: " + RefusalReason(shape.architecture);
  if (std::find(rule->special_lengths.begin(), rule->special_lengths.end(), shape.layer_count) != rule->special_lengths.end()) {
    return Named(shape) + " with " + std::to_string(shape.layer_count) + " layers is not cut: llama.cpp treats exactly this layer count differently";
  }
  if (shape.layer_count > rule->layers_max) {
    return Named(shape) + " with " + std::to_string(shape.layer_count) + " layers is not cut: models of more than " +
           std::to_string(rule->layers_max) + " layers have tensors that shorter ones may not have";
  }
  return "";
}

bool IsUniform(const MetadataEntry& entry, uint64_t count) {
  const uint64_t size = entry.count == 0 ? 0 : entry.raw.size() / entry.count;
  for (uint64_t i = 1; i < std::min(count, entry.count); ++i) {
    if (entry.raw.compare(i * size, size, entry.raw, 0, size) != 0) return false;
  }
  return true;
}

// What in this file the rules do not know; empty when they know all of it.
std::string UnknownParts(const ModelFile& file, const ModelShape& shape) {
  const ArchitectureRule* rule = FindArchitecture(shape.architecture);
  for (const MetadataEntry& entry : file.metadata()) {
    if (entry.type != ValueType::kArray || !entry.key.starts_with(shape.architecture + ".")) continue;
    if (IsDeepstackMapping(entry.key, shape.architecture)) {
      if (entry.Integer() == -1 && IsUniform(entry, entry.count)) continue;
      return "\"" + Printable(entry.key) + "\" injects image features into layers, which a cut cannot follow";
    }
    const bool per_layer = IsPerLayerKey(entry.key, shape.architecture);
    if (per_layer == (entry.element_type == ValueType::kString) && !IsModelWideArray(entry.key, shape.architecture)) {
      return "the cut rules do not know the array \"" + Printable(entry.key) + "\"";
    }
    const bool pattern = entry.key == shape.architecture + ".attention.sliding_window_pattern";
    if (per_layer && !pattern && entry.count != shape.layer_count + shape.prediction_layers) {
      return "the array \"" + Printable(entry.key) + "\" has " + std::to_string(entry.count) + " elements for " +
             std::to_string(shape.layer_count + shape.prediction_layers) + " layers";
    }
    if (per_layer && !pattern && !rule->uneven_layers && !IsUniform(entry, shape.layer_count)) {
      return "its layers differ in \"" + Printable(entry.key) + "\", which is not certified for " + Named(shape);
    }
  }
  for (const TensorInfo& tensor : file.tensors()) {
    if (!ParseLayerName(tensor.name).has_value() && RoleOf(tensor.name) == Role::kUnknown) {
      return "the cut rules do not know the tensor \"" + Printable(tensor.name) + "\"";
    }
  }
  return "";
}

// Whether stock code would run a shard of this range as the whole model runs these layers.
Status CheckRange(const ModelShape& shape, LayerRange range) {
  const ArchitectureRule& rule = *FindArchitecture(shape.architecture);
  for (uint32_t border : {range.begin, range.end}) {
    if (border != shape.layer_count && border % rule.cut_step != 0) {
      return Refused(Named(shape) + " is not cut at layer " + std::to_string(border) + ": its cuts are multiples of " + std::to_string(rule.cut_step));
    }
  }
  if (range.size() == shape.layer_count) return OkStatus();
  if (std::find(rule.special_lengths.begin(), rule.special_lengths.end(), range.size()) != rule.special_lengths.end()) {
    return Refused(Named(shape) + ": range " + range.Text() + " has " + std::to_string(range.size()) +
                   " layers, a count that llama.cpp treats differently; choose another cut");
  }
  if (IsLiteByAccident(shape, range)) {
    return Refused(Named(shape) + ": range " + range.Text() + " has " + std::to_string(range.size()) +
                   " layers, which llama.cpp takes for a lite model; choose another cut");
  }
  if (IsWindowless(shape, range) && rule.windowless == WindowlessRange::kRefuse) {
    return Refused(Named(shape) + ": range " + range.Text() +
                   " has no sliding-window layer, and llama.cpp aborts on a window model without one; choose another cut");
  }
  return OkStatus();
}

void AddHoleNames(ShardPlan* plan) {
  MetadataEntry holes;
  holes.key = kShardHolesKey;
  holes.type = ValueType::kArray;
  holes.element_type = ValueType::kString;
  for (const PlannedTensor& tensor : plan->tensors) {
    if (tensor.hole) holes.strings.push_back(tensor.name);
  }
  holes.count = holes.strings.size();
  if (holes.count > 0) plan->metadata.push_back(std::move(holes));
}

}  // namespace

LegalCuts FindLegalCuts(const ModelFile& file, const ModelShape& shape) {
  LegalCuts legal;
  legal.reason = WholeModelRefusal(shape);
  if (legal.reason.empty()) legal.reason = UnknownParts(file, shape);
  if (!legal.reason.empty()) return legal;
  const ArchitectureRule& rule = *FindArchitecture(shape.architecture);
  if (rule.cut_step > 1) legal.reason = "cuts of " + Named(shape) + " are multiples of " + std::to_string(rule.cut_step);
  for (uint32_t cut = rule.cut_step; cut < shape.layer_count; cut += rule.cut_step) {
    // However the rest is cut, one of its ranges would have no window layer.
    const bool stranded = IsWindowless(shape, {0, cut}) || IsWindowless(shape, {cut, shape.layer_count});
    if (stranded && rule.windowless == WindowlessRange::kRefuse) {
      legal.reason = "a range of " + Named(shape) + " needs a sliding-window layer";
    } else {
      legal.cuts.push_back(cut);
    }
  }
  return legal;
}

Result<ShardPlan> PlanShard(const ModelFile& file, const ModelShape& shape, LayerRange range) {
  if (file.Find(kShardRulesKey) != nullptr) return Refused(file.path() + ": is a shard already; cut the model that it was cut from");
  if (range.empty() || range.end > shape.layer_count) {
    return BadConfiguration("range " + range.Text() + " is no range of a model with " + std::to_string(shape.layer_count) + " layers");
  }
  if (const std::string reason = WholeModelRefusal(shape); !reason.empty()) return Refused(file.path() + ": " + reason);
  if (const std::string unknown = UnknownParts(file, shape); !unknown.empty()) return Refused(file.path() + ": " + unknown);
  if (Status status = CheckRange(shape, range); !status.ok()) return Refused(file.path() + ": " + status.message());
  if (file.FindTensor("token_embd.weight") == nullptr) return BadModel(file.path() + ": it has no tensor \"token_embd.weight\"");
  ShardPlan plan;
  plan.range = range;
  plan.tensors = TensorPlanner(file, shape, range).Plan();
  plan.metadata = PlanMetadata(file, shape, range);
  if (StoresOutputAsEmbedding(file, shape, range)) plan.metadata.push_back(MetadataEntry::Bool(kShardOutputKey, true));
  AddHoleNames(&plan);
  for (const PlannedTensor& tensor : plan.tensors) {
    const uint64_t bytes = Aligned(tensor.bytes, kDefaultAlignment);
    plan.bytes += bytes;
    if (tensor.hole) plan.hole_bytes += bytes;
  }
  return plan;
}

Result<std::vector<LayerRange>> RangesOfCuts(const ModelShape& shape, const std::vector<uint32_t>& cuts) {
  std::vector<LayerRange> ranges;
  uint32_t begin = 0;
  for (uint32_t cut : cuts) {
    if (cut <= begin || cut >= shape.layer_count) {
      return BadConfiguration("cut " + std::to_string(cut) + " does not fit: cuts rise from 1 to " + std::to_string(shape.layer_count - 1) +
                              " for this model's " + std::to_string(shape.layer_count) + " layers");
    }
    ranges.push_back({begin, cut});
    begin = cut;
  }
  ranges.push_back({begin, shape.layer_count});
  if (const std::string reason = WholeModelRefusal(shape); !reason.empty()) return Refused(reason);
  for (LayerRange range : ranges) {
    if (Status status = CheckRange(shape, range); !status.ok()) return status;
  }
  return ranges;
}

}  // namespace meshnet::gguf
