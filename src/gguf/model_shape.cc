#include "gguf/model_shape.h"

#include <optional>

#include "gguf/architecture_table.h"
#include "gguf/header_file.h"
#include "gguf/layer_name.h"

namespace meshnet::gguf {
namespace {

constexpr int64_t kLayersMax = 512;          // LLAMA_MAX_LAYERS
constexpr int64_t kWidthMax = 1 << 20;
constexpr int64_t kHeadsMax = 1 << 16;

class ShapeReader {
 public:
  explicit ShapeReader(const ModelFile& file) : file_(file) {}

  Result<ModelShape> Read() {
    shape_.architecture = file_.String("general.architecture", "");
    if (shape_.architecture.empty()) return BadModel(file_.path() + ": it has no key \"general.architecture\"");
    for (Status (ShapeReader::*step)() : {&ShapeReader::ReadSizes, &ShapeReader::ReadLayers, &ShapeReader::ReadWindows,
                                          &ShapeReader::CountTensors, &ShapeReader::CheckWidths}) {
      if (Status status = (this->*step)(); !status.ok()) return status;
    }
    return std::move(shape_);
  }

 private:
  Status ReadSizes();
  Status ReadLayers();
  Status ReadWindows();
  Status CountTensors();
  Status CheckWidths();
  void ReadVocabulary();

  std::string Key(std::string_view suffix) const { return shape_.architecture + "." + std::string(suffix); }
  Status Bad(std::string_view suffix, const std::string& what) const {
    return BadModel(file_.path() + ": key \"" + Key(suffix) + "\" " + what);
  }
  // A required or defaulted number within [low, high].
  Status Number(std::string_view suffix, std::optional<int64_t> fallback, int64_t low, int64_t high, uint32_t* value) const;
  // The same of one layer, where the key may be an array.
  Status LayerNumber(std::string_view suffix, uint32_t layer, std::optional<int64_t> fallback, int64_t high, uint32_t* value) const;

  const ModelFile& file_;
  ModelShape shape_;
  uint32_t block_count_ = 0;     // prediction blocks included
};

Status ShapeReader::Number(std::string_view suffix, std::optional<int64_t> fallback, int64_t low, int64_t high, uint32_t* value) const {
  const MetadataEntry* entry = file_.Find(Key(suffix));
  std::optional<int64_t> number = entry == nullptr ? fallback : entry->type == ValueType::kArray ? std::nullopt : entry->Integer();
  if (!number.has_value()) return Bad(suffix, entry == nullptr ? "is missing: this is no language model of llama.cpp" : "is no whole number");
  if (*number < low || *number > high) {
    return Bad(suffix, "is " + std::to_string(*number) + "; expected " + std::to_string(low) + " to " + std::to_string(high));
  }
  *value = static_cast<uint32_t>(*number);
  return OkStatus();
}

Status ShapeReader::LayerNumber(std::string_view suffix, uint32_t layer, std::optional<int64_t> fallback, int64_t high, uint32_t* value) const {
  const MetadataEntry* entry = file_.Find(Key(suffix));
  if (entry == nullptr || entry->type != ValueType::kArray) return Number(suffix, fallback, 0, high, value);
  if (entry->count != block_count_) {
    return Bad(suffix, "has " + std::to_string(entry->count) + " elements for " + std::to_string(block_count_) + " layers");
  }
  const std::optional<int64_t> number = entry->Integer(layer);
  if (!number.has_value() || *number < 0 || *number > high) return Bad(suffix, "has no usable element " + std::to_string(layer));
  *value = static_cast<uint32_t>(*number);
  return OkStatus();
}

Status ShapeReader::ReadSizes() {
  shape_.name = file_.String("general.name", "");
  if (shape_.name.empty()) {
    const size_t slash = file_.path().rfind('/');
    shape_.name = slash == std::string::npos ? file_.path() : file_.path().substr(slash + 1);
    if (shape_.name.ends_with(".gguf")) shape_.name.resize(shape_.name.size() - 5);
  }
  if (Status status = Number("block_count", std::nullopt, 1, kLayersMax, &block_count_); !status.ok()) return status;
  if (Status status = Number("nextn_predict_layers", 0, 0, block_count_ - 1, &shape_.prediction_layers); !status.ok()) return status;
  shape_.layer_count = block_count_ - shape_.prediction_layers;
  if (Status status = Number("embedding_length", std::nullopt, 1, kWidthMax, &shape_.embedding_width); !status.ok()) return status;
  shape_.boundary_width = shape_.embedding_width;
  if (Status status = Number("context_length", std::nullopt, 1, UINT32_MAX, &shape_.context_length); !status.ok()) return status;
  shape_.tied = file_.FindTensor("output.weight") == nullptr;
  ReadVocabulary();
  return OkStatus();
}

void ShapeReader::ReadVocabulary() {
  const TensorInfo* embedding = file_.FindTensor("token_embd.weight");
  if (embedding != nullptr && embedding->dims.size() >= 2 && embedding->dims[1] <= UINT32_MAX) {
    shape_.vocabulary_size = static_cast<uint32_t>(embedding->dims[1]);
  } else if (const MetadataEntry* tokens = file_.Find("tokenizer.ggml.tokens"); tokens != nullptr) {
    shape_.vocabulary_size = static_cast<uint32_t>(tokens->count);
  }
}

Status ShapeReader::ReadLayers() {
  uint32_t heads_first = 0, key_length = 0, value_length = 0, key_mla = 0, value_mla = 0;
  if (Status status = LayerNumber("attention.head_count", 0, 0, kHeadsMax, &heads_first); !status.ok()) return status;
  const int64_t head_width = heads_first == 0 ? 0 : shape_.embedding_width / heads_first;
  if (Status status = Number("attention.key_length", head_width, 0, kWidthMax, &key_length); !status.ok()) return status;
  if (Status status = Number("attention.value_length", head_width, 0, kWidthMax, &value_length); !status.ok()) return status;
  if (Status status = Number("attention.key_length_mla", 0, 0, kWidthMax, &key_mla); !status.ok()) return status;
  if (Status status = Number("attention.value_length_mla", 0, 0, kWidthMax, &value_mla); !status.ok()) return status;
  // A latent cache keeps keys only: values are a view of them.
  const bool latent = key_mla != 0 && value_mla != 0;
  shape_.layers.resize(shape_.layer_count);
  for (uint32_t i = 0; i < shape_.layer_count; ++i) {
    LayerShape& layer = shape_.layers[i];
    if (Status status = LayerNumber("attention.head_count", i, 0, kHeadsMax, &layer.heads); !status.ok()) return status;
    if (Status status = LayerNumber("attention.head_count_kv", i, layer.heads, kHeadsMax, &layer.heads_kv); !status.ok()) return status;
    const uint64_t key_elements = static_cast<uint64_t>(layer.heads_kv) * key_length;
    const uint64_t value_elements = latent ? 0 : static_cast<uint64_t>(layer.heads_kv) * value_length;
    if (key_elements > UINT32_MAX || value_elements > UINT32_MAX) return Bad("attention.key_length", "times the heads is out of range");
    layer.key_elements = static_cast<uint32_t>(key_elements);
    layer.value_elements = static_cast<uint32_t>(value_elements);
    if (layer.heads_kv == 0) layer.kind = LayerKind::kNone;
  }
  return OkStatus();
}

Status ShapeReader::ReadWindows() {
  const ArchitectureRule* rule = FindArchitecture(shape_.architecture);
  uint32_t window = 0;
  if (Status status = Number("attention.sliding_window", 0, 0, INT32_MAX, &window); !status.ok()) return status;
  if (window == 0) return OkStatus();
  if (rule == nullptr) {
    // Nothing of it will be cut or run; what `inspect` says must not promise a truncation that the model may not allow.
    shape_.window_tokens = window;
    shape_.truncation_class = TruncationClass::kWindow;
    return OkStatus();
  }
  if (rule->window == WindowRule::kNone) return OkStatus();
  static constexpr std::string_view kPattern = "attention.sliding_window_pattern";
  const MetadataEntry* entry = file_.Find(Key(kPattern));
  const bool array = entry != nullptr && entry->type == ValueType::kArray;
  if (!array && rule->window == WindowRule::kArray) return Bad(kPattern, "must be an array for this architecture");
  uint32_t period = rule->window_period;
  if (!array) {
    if (Status status = Number(kPattern, period, 0, kLayersMax, &period); !status.ok()) return status;
  } else if (entry->count < shape_.layer_count || entry->count > kLayersMax) {
    return Bad(kPattern, "has " + std::to_string(entry->count) + " elements for " + std::to_string(shape_.layer_count) + " layers");
  }
  bool any = false;
  for (uint32_t i = 0; i < shape_.layer_count; ++i) {
    bool windowed = false;
    if (array) {
      const std::optional<int64_t> element = entry->Integer(i);
      if (!element.has_value()) return Bad(kPattern, "is no array of booleans or whole numbers");
      windowed = *element != 0;
    } else {
      windowed = period == 0 || (rule->window_dense_first ? i % period != 0 : i % period < period - 1);
    }
    if (windowed && shape_.layers[i].kind == LayerKind::kFullAttention) shape_.layers[i].kind = LayerKind::kWindowAttention;
    any = any || windowed;
  }
  if (!any) return OkStatus();
  shape_.window_tokens = window;
  shape_.truncation_class = TruncationClass::kWindow;
  return OkStatus();
}

Status ShapeReader::CountTensors() {
  std::vector<bool> seen(block_count_, false);
  for (const TensorInfo& tensor : file_.tensors()) {
    uint64_t elements = 1;
    for (uint64_t dim : tensor.dims) elements *= dim;
    shape_.parameters += elements;
    shape_.weight_bytes += tensor.bytes;
    const std::optional<LayerName> name = ParseLayerName(tensor.name);
    if (!name.has_value()) continue;
    if (name->layer >= block_count_) {
      return BadModel(file_.parts()[tensor.part].path + ": tensor \"" + Printable(tensor.name) + "\" is of a layer beyond \"" +
                      Key("block_count") + "\" = " + std::to_string(block_count_) + (file_.parts().size() > 1 ? ": the part is of another model" : ""));
    }
    seen[name->layer] = true;
    if (name->layer < shape_.layer_count) shape_.layers[name->layer].weight_bytes += tensor.bytes;
  }
  if (file_.tensors().empty()) return OkStatus();  // a vocabulary file
  for (uint32_t i = 0; i < shape_.layer_count; ++i) {
    if (!seen[i]) return BadModel(file_.path() + ": no tensor of layer " + std::to_string(i) + " (\"blk." + std::to_string(i) + ".*\") is in it");
  }
  return OkStatus();
}

// A part of another model with as many tensors shows itself by its widths.
Status ShapeReader::CheckWidths() {
  for (const TensorInfo& tensor : file_.tensors()) {
    const std::optional<LayerName> name = ParseLayerName(tensor.name);
    const bool norm = name.has_value() && (name->rest == "attn_norm.weight" || name->rest == "ffn_norm.weight");
    if ((norm || tensor.name == "token_embd.weight" || tensor.name == "output_norm.weight") && tensor.dims[0] != shape_.embedding_width &&
        FindArchitecture(shape_.architecture) != nullptr) {
      return BadModel(file_.parts()[tensor.part].path + ": tensor \"" + Printable(tensor.name) + "\" is " + std::to_string(tensor.dims[0]) +
                      " wide, but \"" + Key("embedding_length") + "\" is " + std::to_string(shape_.embedding_width) +
                      (file_.parts().size() > 1 ? ": the part is of another model" : ""));
    }
  }
  return OkStatus();
}

}  // namespace

Result<ModelShape> ReadModelShape(const ModelFile& file) { return ShapeReader(file).Read(); }

}  // namespace meshnet::gguf
