#include "gguf/shard_metadata.h"

#include <algorithm>
#include <cmath>

#include "gguf/architecture_table.h"
#include "gguf/shard_keys.h"

namespace meshnet::gguf {
namespace {

constexpr uint32_t kGatingSoftmax = 1;
constexpr uint32_t kGatingSigmoid = 2;

bool IsMiddle(const ModelShape& shape, LayerRange range) { return range.begin != 0 && range.end != shape.layer_count; }

// src/models/deepseek2.cpp decides so by layer count and vocabulary.
bool IsDeepseekLite(uint32_t layers, uint32_t vocabulary) { return layers == 26 || layers == 27 || (layers == 48 && vocabulary == 128256); }

bool HasQuirk(const ModelShape& shape, Quirk quirk) {
  const ArchitectureRule* rule = FindArchitecture(shape.architecture);
  return rule != nullptr && rule->quirk == quirk;
}

MetadataEntry Slice(const MetadataEntry& entry, LayerRange range) {
  MetadataEntry slice = entry;
  if (entry.count < range.end) return slice;  // a window pattern without a window: nobody reads it
  slice.count = range.size();
  const uint64_t size = entry.raw.size() / entry.count;
  slice.raw = entry.raw.substr(range.begin * size, range.size() * size);
  return slice;
}

// Builds the entries in the model's order, replacing some; what the model does not say is appended.
class MetadataPlanner {
 public:
  MetadataPlanner(const ModelFile& file, const ModelShape& shape, LayerRange range) : file_(file), shape_(shape), range_(range) {}

  std::vector<MetadataEntry> Plan() {
    ReplaceCounts();
    ReplaceSizes();
    ReplaceWindows();
    ReplaceQuirks();
    const bool middle = IsMiddle(shape_, range_);
    for (const MetadataEntry& entry : file_.metadata()) {
      if (entry.key == "general.alignment" || entry.key.starts_with(kShardPrefix)) continue;
      if (middle && entry.key.starts_with("tokenizer.")) continue;
      Add(entry);
    }
    if (middle) out_.push_back(MetadataEntry::String("tokenizer.ggml.model", "no_vocab"));
    for (MetadataEntry& entry : replacements_) out_.push_back(std::move(entry));
    for (auto [key, value] : {std::pair(kShardRulesKey, kRulesVersion), {kShardBeginKey, range_.begin}, {kShardEndKey, range_.end},
                              {kShardLayersKey, shape_.layer_count}, {kShardVocabularyKey, shape_.vocabulary_size},
                              {kShardWidthKey, shape_.boundary_width}}) {
      out_.push_back(MetadataEntry::Uint32(key, value));
    }
    return std::move(out_);
  }

 private:
  std::string Key(const std::string& suffix) const { return shape_.architecture + "." + suffix; }
  void Replace(const std::string& suffix, uint32_t value) { replacements_.push_back(MetadataEntry::Uint32(Key(suffix), value)); }

  // A replacement takes the place of the entry it replaces; what is left of them goes to the end.
  void Add(const MetadataEntry& entry) {
    const auto found = std::find_if(replacements_.begin(), replacements_.end(), [&](const MetadataEntry& r) { return r.key == entry.key; });
    if (found != replacements_.end()) {
      out_.push_back(std::move(*found));
      replacements_.erase(found);
    } else if (dropped_ == entry.key) {
      return;
    } else if (entry.type == ValueType::kArray && IsPerLayerKey(entry.key, shape_.architecture)) {
      out_.push_back(Slice(entry, range_));
    } else {
      out_.push_back(entry);
    }
  }

  void ReplaceCounts() {
    Replace("block_count", range_.size());
    if (file_.Find(Key("nextn_predict_layers")) != nullptr) Replace("nextn_predict_layers", 0);
    if (const std::optional<int64_t> dense = file_.Integer(Key("leading_dense_block_count")); dense.has_value()) {
      const int64_t left = std::clamp<int64_t>(*dense - range_.begin, 0, range_.size());
      Replace("leading_dense_block_count", static_cast<uint32_t>(left));
    }
    Replace("vocab_size", IsMiddle(shape_, range_) ? 1 : shape_.vocabulary_size);
  }

  // Stock code takes these from layer 0 when they are not written, and a shard's layer 0 is another one.
  void ReplaceSizes() {
    const MetadataEntry* heads = file_.Find(Key("attention.head_count"));
    const std::optional<int64_t> first = heads == nullptr ? std::nullopt : heads->Integer(0);
    if (first.has_value() && *first > 0) {
      const auto head_width = static_cast<uint32_t>(shape_.embedding_width / *first);
      const auto key_length = static_cast<uint32_t>(file_.Integer(Key("attention.key_length")).value_or(head_width));
      if (file_.Find(Key("attention.key_length")) == nullptr) Replace("attention.key_length", key_length);
      if (file_.Find(Key("attention.value_length")) == nullptr) Replace("attention.value_length", head_width);
      if (file_.Find(Key("rope.dimension_count")) == nullptr) Replace("rope.dimension_count", key_length);
    }
    // Injected rows are scaled like embeddings.
    const bool scaled = FindArchitecture(shape_.architecture)->scales_embedding || file_.Find(Key("embedding_scale")) != nullptr;
    if (range_.begin != 0 && scaled) {
      replacements_.push_back(MetadataEntry::Float32(Key("embedding_scale"), 1.0f));
    }
  }

  // The pattern counts from the model's first layer, so a shard gets it as an array.
  void ReplaceWindows() {
    if (shape_.window_tokens == 0) return;
    const std::string pattern = "attention.sliding_window_pattern";
    if (IsWindowless(shape_, range_)) {
      Replace("attention.sliding_window", 0);
      dropped_ = Key(pattern);
      return;
    }
    std::vector<bool> windowed;
    for (uint32_t i = range_.begin; i < range_.end; ++i) windowed.push_back(shape_.layers[i].kind == LayerKind::kWindowAttention);
    replacements_.push_back(MetadataEntry::BoolArray(Key(pattern), windowed));
  }

  void ReplaceQuirks() {
    if (HasQuirk(shape_, Quirk::kMinicpmScale) && file_.Find(Key("residual_scale")) == nullptr) {
      const float scale = 1.4f / std::sqrt(static_cast<float>(shape_.layer_count));
      replacements_.push_back(MetadataEntry::Float32(Key("residual_scale"), scale));
    }
    if (!HasQuirk(shape_, Quirk::kDeepseek2Lite)) return;
    if (IsDeepseekLite(shape_.layer_count, shape_.vocabulary_size)) Replace("attention.q_lora_rank", 0);
    if (file_.Integer(Key("expert_gating_func")).value_or(0) == 0) {
      const bool sigmoid = (shape_.layer_count == 47 || shape_.layer_count == 48) && shape_.vocabulary_size == 154880;
      Replace("expert_gating_func", sigmoid ? kGatingSigmoid : kGatingSoftmax);
    }
  }

  const ModelFile& file_;
  const ModelShape& shape_;
  const LayerRange range_;
  std::vector<MetadataEntry> replacements_;
  std::string dropped_;
  std::vector<MetadataEntry> out_;
};

}  // namespace

std::vector<MetadataEntry> PlanMetadata(const ModelFile& file, const ModelShape& shape, LayerRange range) {
  return MetadataPlanner(file, shape, range).Plan();
}

bool IsWindowless(const ModelShape& shape, LayerRange range) {
  if (shape.window_tokens == 0) return false;
  for (uint32_t i = range.begin; i < range.end; ++i) {
    if (shape.layers[i].kind == LayerKind::kWindowAttention) return false;
  }
  return true;
}

bool IsLiteByAccident(const ModelShape& shape, LayerRange range) {
  if (!HasQuirk(shape, Quirk::kDeepseek2Lite) || IsDeepseekLite(shape.layer_count, shape.vocabulary_size)) return false;
  return IsDeepseekLite(range.size(), IsMiddle(shape, range) ? 1 : shape.vocabulary_size);
}

}  // namespace meshnet::gguf
