#include "gguf/gguf_writer.h"

#include "base/check.h"

namespace meshnet::gguf {
namespace {

template <typename Integer>
void Put(std::string* out, Integer value) {
  for (size_t i = 0; i < sizeof(Integer); ++i) out->push_back(static_cast<char>(value >> (8 * i) & 0xff));
}

void PutString(std::string* out, const std::string& text) {
  Put<uint64_t>(out, text.size());
  out->append(text);
}

void PutEntry(std::string* out, const MetadataEntry& entry) {
  PutString(out, entry.key);
  Put<uint32_t>(out, static_cast<uint32_t>(entry.type));
  ValueType element = entry.type;
  if (entry.type == ValueType::kArray) {
    element = entry.element_type;
    Put<uint32_t>(out, static_cast<uint32_t>(element));
    Put<uint64_t>(out, entry.count);
  }
  if (element == ValueType::kString) {
    MESHNET_CHECK(entry.strings.size() == entry.count);
    for (const std::string& text : entry.strings) PutString(out, text);
  } else {
    out->append(entry.raw);
  }
}

}  // namespace

uint64_t Aligned(uint64_t offset, uint64_t alignment) { return (offset + alignment - 1) / alignment * alignment; }

EncodedHeader EncodeHeader(std::span<const MetadataEntry> metadata, std::span<const TensorLayout> tensors) {
  EncodedHeader header;
  std::string& out = header.bytes;
  out = "GGUF";
  Put<uint32_t>(&out, 3);
  Put<uint64_t>(&out, tensors.size());
  Put<uint64_t>(&out, metadata.size());
  for (const MetadataEntry& entry : metadata) PutEntry(&out, entry);
  uint64_t offset = 0;
  for (const TensorLayout& tensor : tensors) {
    MESHNET_CHECK(!tensor.dims.empty() && tensor.dims.size() <= 4);
    PutString(&out, tensor.name);
    Put<uint32_t>(&out, static_cast<uint32_t>(tensor.dims.size()));
    for (uint64_t dim : tensor.dims) Put<uint64_t>(&out, dim);
    Put<uint32_t>(&out, tensor.type);
    Put<uint64_t>(&out, offset);
    header.offsets.push_back(offset);
    offset += Aligned(tensor.bytes, kDefaultAlignment);
  }
  out.resize(Aligned(out.size(), kDefaultAlignment), '\0');
  for (uint64_t& data_offset : header.offsets) data_offset += out.size();
  header.file_bytes = out.size() + offset;
  return header;
}

}  // namespace meshnet::gguf
