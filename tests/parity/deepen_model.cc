#include "parity/deepen_model.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <vector>

#include "gguf/architecture_table.h"
#include "gguf/gguf_writer.h"
#include "gguf/layer_name.h"
#include "gguf/model_file.h"

namespace meshnet::parity {
namespace {

struct Copy {
  gguf::TensorLayout layout;
  const gguf::TensorInfo* source;
};

// Element `to` of a per-layer array is what element `from(to)` was.
template <typename From>
void Repeat(gguf::MetadataEntry& entry, uint32_t layers, From from) {
  const size_t bytes = entry.raw.size() / entry.count;
  std::string raw;
  for (uint32_t layer = 0; layer < layers; ++layer) raw += entry.raw.substr(from(layer) * bytes, bytes);
  entry.raw = raw;
  entry.count = layers;
}

}  // namespace

Status DeepenModel(const std::string& path, uint32_t layers, const std::string& out_path) {
  Result<gguf::ModelFile> file = gguf::ModelFile::Open(path);
  if (!file.ok()) return file.status();
  const std::string architecture = file->String("general.architecture", "");
  const std::string count_key = architecture + ".block_count";
  const auto old_layers = static_cast<uint32_t>(file->Integer(count_key).value_or(0));
  if (old_layers == 0) return BadModel(path + " has no layers");
  const bool dense_first = file->Integer(architecture + ".leading_dense_block_count").value_or(0) > 0;
  const auto from = [&](uint32_t layer) { return dense_first ? std::min(layer, old_layers - 1) : layer % old_layers; };

  std::vector<gguf::MetadataEntry> metadata;
  for (gguf::MetadataEntry entry : file->metadata()) {
    if (entry.key == "general.alignment") continue;
    if (entry.key == count_key) entry = gguf::MetadataEntry::Uint32(count_key, layers);
    if (entry.type == gguf::ValueType::kArray && entry.count == old_layers && gguf::IsPerLayerKey(entry.key, architecture)) Repeat(entry, layers, from);
    metadata.push_back(std::move(entry));
  }
  std::vector<Copy> copies;
  for (const gguf::TensorInfo& tensor : file->tensors()) {
    const std::optional<gguf::LayerName> name = gguf::ParseLayerName(tensor.name);
    if (!name) copies.push_back({{tensor.name, tensor.type, tensor.dims, tensor.bytes}, &tensor});
    for (uint32_t layer = 0; name && layer < layers; ++layer) {
      if (from(layer) == name->layer) copies.push_back({{gguf::FormatLayerName(layer, name->rest), tensor.type, tensor.dims, tensor.bytes}, &tensor});
    }
  }
  std::vector<gguf::TensorLayout> layouts;
  for (const Copy& copy : copies) layouts.push_back(copy.layout);
  const gguf::EncodedHeader header = gguf::EncodeHeader(metadata, layouts);
  std::ifstream in(path, std::ios::binary);
  std::ofstream out(out_path, std::ios::binary | std::ios::trunc);
  out << header.bytes;
  for (size_t i = 0; i < copies.size(); ++i) {
    std::string data(copies[i].source->bytes, '\0');
    in.seekg(static_cast<std::streamoff>(copies[i].source->offset));
    in.read(data.data(), static_cast<std::streamsize>(data.size()));
    out.seekp(static_cast<std::streamoff>(header.offsets[i]));
    out << data;
  }
  out << std::string(header.file_bytes - static_cast<uint64_t>(out.tellp()), '\0');
  out.close();
  return in && out ? OkStatus() : Failure(out_path + " could not be written from " + path);
}

}  // namespace meshnet::parity
