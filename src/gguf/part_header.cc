#include "gguf/part_header.h"

#include <algorithm>
#include <unordered_set>

#include "gguf/ggml_types.h"
#include "gguf/gguf_writer.h"
#include "gguf/header_file.h"

namespace meshnet::gguf {
namespace {

// Bytes of a fixed-size value; 0 for strings, arrays and unknown ids.
uint64_t ValueBytes(uint32_t type) {
  switch (static_cast<ValueType>(type)) {
    case ValueType::kUint8:
    case ValueType::kInt8:
    case ValueType::kBool: return 1;
    case ValueType::kUint16:
    case ValueType::kInt16: return 2;
    case ValueType::kUint32:
    case ValueType::kInt32:
    case ValueType::kFloat32: return 4;
    case ValueType::kUint64:
    case ValueType::kInt64:
    case ValueType::kFloat64: return 8;
    case ValueType::kString:
    case ValueType::kArray: return 0;
  }
  return 0;
}

// Names become messages, file keys and C strings in llama.cpp: a NUL or a control character in one is an attack or a broken file.
bool IsPlainName(const std::string& name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) { return c > 0x20 && c != 0x7f; });
}

std::string EngineBuild() { return "this build's llama.cpp v0.5.0 (tree " + std::string(MESHNET_LLAMA_TREE).substr(0, 8) + ")"; }

class PartParser {
 public:
  explicit PartParser(HeaderFile file) : file_(std::move(file)) {}

  Result<PartHeader> Parse() {
    header_.part = Part{file_.path(), file_.bytes()};
    if (Status status = ParsePreamble(); !status.ok()) return status;
    for (uint64_t i = 0; i < metadata_count_; ++i) {
      if (Status status = ParseEntry(); !status.ok()) return status;
    }
    if (Status status = ReadAlignment(); !status.ok()) return status;
    for (uint64_t i = 0; i < tensor_count_; ++i) {
      if (Status status = ParseTensor(); !status.ok()) return status;
    }
    if (Status status = PlaceTensors(); !status.ok()) return status;
    return std::move(header_);
  }

 private:
  Status ParsePreamble();
  Status ParseEntry();
  Status ParseArray(MetadataEntry* entry, const std::string& what);
  Status ReadAlignment();
  Status ParseTensor();
  Status PlaceTensors();

  HeaderFile file_;
  PartHeader header_;
  uint64_t metadata_count_ = 0;
  uint64_t tensor_count_ = 0;
  uint64_t string_count_ = 0;
  std::unordered_set<std::string> keys_;
  std::unordered_set<std::string> names_;
  std::vector<uint64_t> table_offsets_;  // where each tensor's row of the table stands, for messages
};

Status PartParser::ParsePreamble() {
  std::string magic;
  if (Status status = file_.ReadRaw(&magic, 4, "the magic number"); !status.ok()) return status;
  if (magic != "GGUF") return file_.Bad(0, "no GGUF file: it begins with \"" + Printable(magic) + "\" instead of \"GGUF\"");
  if (Status status = file_.Read(&header_.version, "the version"); !status.ok()) return status;
  if ((header_.version & 0xffff) == 0 && header_.version != 0) {
    return file_.Bad(4, "the file is big-endian (byte-swapped; its version reads as " + std::to_string(header_.version) +
                            "); convert it with gguf_convert_endian.py");
  }
  if (header_.version != 2 && header_.version != 3) {
    return file_.Bad(4, "GGUF version " + std::to_string(header_.version) + " is not supported; " + EngineBuild() + " reads versions 2 and 3");
  }
  if (Status status = file_.Read(&tensor_count_, "the tensor count"); !status.ok()) return status;
  if (Status status = file_.Read(&metadata_count_, "the metadata count"); !status.ok()) return status;
  // The smallest row of the tensor table has 33 bytes, the smallest entry 14.
  if (tensor_count_ > kTensorCountMax || tensor_count_ > file_.bytes_left() / 33) {
    return file_.Bad(8, "the header claims " + std::to_string(tensor_count_) + " tensors; a file of " + std::to_string(file_.bytes()) +
                            " bytes cannot hold them (and at most " + std::to_string(kTensorCountMax) + " are accepted)");
  }
  if (metadata_count_ > kMetadataCountMax || metadata_count_ > file_.bytes_left() / 14) {
    return file_.Bad(16, "the header claims " + std::to_string(metadata_count_) + " metadata entries; a file of " +
                             std::to_string(file_.bytes()) + " bytes cannot hold them (and at most " + std::to_string(kMetadataCountMax) +
                             " are accepted)");
  }
  return OkStatus();
}

Status PartParser::ParseEntry() {
  const uint64_t begin = file_.offset();
  MetadataEntry entry;
  if (Status status = file_.Read(&entry.key, kKeyBytesMax, "the key of metadata entry " + std::to_string(keys_.size())); !status.ok()) {
    return status;
  }
  if (!IsPlainName(entry.key)) return file_.Bad(begin, "the key \"" + Printable(entry.key) + "\" is empty or holds control characters");
  if (!keys_.insert(entry.key).second) return file_.Bad(begin, "the key \"" + Printable(entry.key) + "\" occurs twice");
  const std::string what = "the value of \"" + Printable(entry.key) + "\"";
  const uint64_t type_offset = file_.offset();
  uint32_t type = 0;
  if (Status status = file_.Read(&type, what); !status.ok()) return status;
  entry.type = entry.element_type = static_cast<ValueType>(type);
  Status status;
  if (entry.type == ValueType::kArray) {
    status = ParseArray(&entry, what);
  } else if (entry.type == ValueType::kString) {
    entry.strings.emplace_back();
    status = file_.Read(&entry.strings.back(), kStringBytesMax, what);
  } else if (const uint64_t bytes = ValueBytes(type); bytes != 0) {
    status = file_.ReadRaw(&entry.raw, bytes, what);
  } else {
    status = file_.Bad(type_offset, what + " has the unknown type " + std::to_string(type));
  }
  if (!status.ok()) return status;
  if (file_.offset() > kHeaderBytesMax) {
    return file_.Bad(file_.offset(), "the header is longer than the " + std::to_string(kHeaderBytesMax) + " bytes that are accepted");
  }
  header_.metadata.push_back(std::move(entry));
  return OkStatus();
}

Status PartParser::ParseArray(MetadataEntry* entry, const std::string& what) {
  const uint64_t begin = file_.offset();
  uint32_t type = 0;
  if (Status status = file_.Read(&type, what); !status.ok()) return status;
  if (Status status = file_.Read(&entry->count, what); !status.ok()) return status;
  entry->element_type = static_cast<ValueType>(type);
  if (entry->element_type == ValueType::kArray) return file_.Bad(begin, what + " is an array of arrays, which GGUF readers refuse");
  const bool strings = entry->element_type == ValueType::kString;
  const uint64_t bytes = strings ? 8 : ValueBytes(type);
  if (bytes == 0) return file_.Bad(begin, what + " is an array of the unknown type " + std::to_string(type));
  if (entry->count > file_.bytes_left() / bytes) {
    return file_.Bad(begin, what + " claims " + std::to_string(entry->count) + " elements, more than the " +
                                std::to_string(file_.bytes_left()) + " bytes left in the file can hold");
  }
  if (!strings) {
    if (entry->count * bytes > kHeaderBytesMax) {
      return file_.Bad(begin, what + " has " + std::to_string(entry->count) + " elements, more than are accepted");
    }
    return file_.ReadRaw(&entry->raw, entry->count * bytes, what);
  }
  string_count_ += entry->count;
  if (string_count_ > kStringCountMax) {
    return file_.Bad(begin, what + " brings the strings of the header to " + std::to_string(string_count_) + "; at most " +
                                std::to_string(kStringCountMax) + " are accepted");
  }
  entry->strings.resize(entry->count);
  for (std::string& text : entry->strings) {
    if (Status status = file_.Read(&text, kStringBytesMax, what); !status.ok()) return status;
    if (file_.offset() > kHeaderBytesMax) break;  // reported by the caller
  }
  return OkStatus();
}

Status PartParser::ReadAlignment() {
  const MetadataEntry* entry = header_.Find("general.alignment");
  if (entry == nullptr) return OkStatus();
  const std::optional<int64_t> value = entry->type == ValueType::kUint32 ? entry->Integer() : std::nullopt;
  if (!value.has_value()) return file_.Bad(file_.offset(), "\"general.alignment\" is not an unsigned 32-bit integer");
  if (*value == 0 || (*value & (*value - 1)) != 0) {
    return file_.Bad(file_.offset(), "\"general.alignment\" is " + std::to_string(*value) + ", which is no power of two");
  }
  header_.alignment = static_cast<uint64_t>(*value);
  return OkStatus();
}

Status PartParser::ParseTensor() {
  const uint64_t begin = file_.offset();
  TensorInfo tensor;
  const std::string ordinal = "row " + std::to_string(header_.tensors.size()) + " of the tensor table";
  if (Status status = file_.Read(&tensor.name, kTensorNameBytesMax, "the name in " + ordinal); !status.ok()) return status;
  if (!IsPlainName(tensor.name)) return file_.Bad(begin, "the tensor name \"" + Printable(tensor.name) + "\" is empty or holds control characters");
  if (!names_.insert(tensor.name).second) return file_.Bad(begin, "the tensor name \"" + Printable(tensor.name) + "\" occurs twice");
  const std::string what = "tensor \"" + Printable(tensor.name) + "\"";
  uint32_t dim_count = 0;
  if (Status status = file_.Read(&dim_count, what); !status.ok()) return status;
  if (dim_count == 0 || dim_count > 4) return file_.Bad(begin, what + " has " + std::to_string(dim_count) + " dimensions; 1 to 4 are possible");
  for (uint32_t i = 0; i < dim_count; ++i) {
    uint64_t dim = 0;
    if (Status status = file_.Read(&dim, what); !status.ok()) return status;
    if (dim == 0) return file_.Bad(begin, what + " has no elements: its dimension " + std::to_string(i) + " is 0");
    tensor.dims.push_back(dim);
  }
  if (Status status = file_.Read(&tensor.type, what); !status.ok()) return status;
  const GgmlType* type = FindGgmlType(tensor.type);
  if (type == nullptr) {
    return file_.Bad(begin, "unknown type " + std::to_string(tensor.type) + " in " + what + "; " + EngineBuild() + " does not know it");
  }
  if (tensor.dims[0] % type->block_elements != 0) {
    return file_.Bad(begin, what + " has rows of " + std::to_string(tensor.dims[0]) + " elements, not a multiple of the " +
                                std::to_string(type->block_elements) + " of a " + type->name + " block");
  }
  const std::optional<uint64_t> bytes = TensorBytes(*type, tensor.dims);
  if (!bytes.has_value()) {
    std::string dims;
    for (uint64_t dim : tensor.dims) dims += (dims.empty() ? "" : " x ") + std::to_string(dim);
    return file_.Bad(begin, "the size of " + what + " (" + dims + " values of type " + type->name + ") does not fit 63 bits");
  }
  tensor.bytes = *bytes;
  if (Status status = file_.Read(&tensor.offset, what); !status.ok()) return status;
  table_offsets_.push_back(begin);
  header_.tensors.push_back(std::move(tensor));
  return OkStatus();
}

// Data must lie back to back in table order, as stock code demands; each way to break that has its own message.
Status PartParser::PlaceTensors() {
  const uint64_t data_begin = Aligned(file_.offset(), header_.alignment);
  uint64_t expected = 0;
  for (size_t i = 0; i < header_.tensors.size(); ++i) {
    TensorInfo& tensor = header_.tensors[i];
    const std::string what = "tensor \"" + Printable(tensor.name) + "\"";
    const std::string at = " starts at offset " + std::to_string(tensor.offset) + " of the data section";
    if (tensor.offset % header_.alignment != 0) {
      return file_.Bad(table_offsets_[i], what + at + ", which is no multiple of the alignment " + std::to_string(header_.alignment));
    }
    if (tensor.offset < expected) {
      return file_.Bad(table_offsets_[i], what + at + " and overlaps tensor \"" + Printable(header_.tensors[i - 1].name) + "\"");
    }
    if (tensor.offset > expected) {
      return file_.Bad(table_offsets_[i], what + at + ", but the one before it ends at " + std::to_string(expected) + ": a gap, which " +
                                              EngineBuild() + " refuses");
    }
    if (data_begin > file_.bytes() || tensor.offset > file_.bytes() - data_begin || tensor.bytes > file_.bytes() - data_begin - tensor.offset) {
      return file_.Bad(table_offsets_[i], what + " ends " + std::to_string(tensor.bytes) + " bytes behind offset " +
                                              std::to_string(data_begin + tensor.offset) + ", beyond the end of the file at " +
                                              std::to_string(file_.bytes()) + ": the file is truncated");
    }
    expected = Aligned(tensor.offset + tensor.bytes, header_.alignment);
    tensor.offset += data_begin;
  }
  header_.data_end = std::min(data_begin + expected, file_.bytes());
  return OkStatus();
}

}  // namespace

const MetadataEntry* PartHeader::Find(std::string_view key) const {
  for (const MetadataEntry& entry : metadata) {
    if (entry.key == key) return &entry;
  }
  return nullptr;
}

Result<PartHeader> ReadPartHeader(const std::string& path) {
  Result<HeaderFile> file = HeaderFile::Open(path);
  if (!file.ok()) return file.status();
  return PartParser(std::move(file).value()).Parse();
}

}  // namespace meshnet::gguf
