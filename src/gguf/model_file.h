// One model on disk: a GGUF, or the parts of a split one, headers parsed and checked as hostile input. No tensor data is read here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"

namespace meshnet::gguf {

// GGUF value types by their file ids (ggml/include/gguf.h).
enum class ValueType : uint32_t {
  kUint8 = 0, kInt8 = 1, kUint16 = 2, kInt16 = 3, kUint32 = 4, kInt32 = 5, kFloat32 = 6, kBool = 7,
  kString = 8, kArray = 9, kUint64 = 10, kInt64 = 11, kFloat64 = 12,
};

struct MetadataEntry {
  std::string key;
  ValueType type = ValueType::kUint32;
  ValueType element_type = ValueType::kUint32;  // of an array
  uint64_t count = 1;                           // elements of an array, else 1
  std::string raw;                              // scalar and fixed-size elements: little endian bytes, back to back
  std::vector<std::string> strings;             // kString, and arrays of it

  // The value as a number, when it is one (or an array with `index` inside it) and fits; nothing otherwise.
  std::optional<int64_t> Integer(uint64_t index = 0) const;
  std::optional<double> Real(uint64_t index = 0) const;

  static MetadataEntry Uint32(std::string key, uint32_t value);
  static MetadataEntry Float32(std::string key, float value);
  static MetadataEntry Bool(std::string key, bool value);
  static MetadataEntry String(std::string key, std::string value);
  static MetadataEntry Uint32Array(std::string key, const std::vector<uint32_t>& values);
  static MetadataEntry BoolArray(std::string key, const std::vector<bool>& values);
};

struct TensorInfo {
  std::string name;
  uint32_t type = 0;             // ggml type id
  std::vector<uint64_t> dims;    // ne0 first
  uint64_t bytes = 0;
  uint32_t part = 0;             // index into ModelFile::parts
  uint64_t offset = 0;           // absolute, in that part
};

struct Part {
  std::string path;              // as typed, or beside what was typed
  uint64_t bytes = 0;
};

struct PartHeader;               // part_header.h

class ModelFile {
 public:
  // Any part of a split set may be named. kBadModel: one sentence with file, offset, key or tensor, and value.
  static Result<ModelFile> Open(const std::string& path);

  const std::string& path() const { return path_; }
  const std::vector<Part>& parts() const { return parts_; }
  const std::vector<MetadataEntry>& metadata() const { return metadata_; }  // of part 1, split.* removed
  const std::vector<TensorInfo>& tensors() const { return tensors_; }       // of all parts
  uint64_t alignment() const { return alignment_; }

  const MetadataEntry* Find(std::string_view key) const;      // null when absent
  const TensorInfo* FindTensor(std::string_view name) const;  // null when absent
  std::string String(std::string_view key, std::string_view fallback) const;
  std::optional<int64_t> Integer(std::string_view key) const;

 private:
  Status Join(std::vector<PartHeader>* headers);

  std::string path_;
  std::vector<Part> parts_;
  std::vector<MetadataEntry> metadata_;
  std::vector<TensorInfo> tensors_;
  std::vector<uint32_t> by_name_;  // indexes of tensors_, sorted by name
  uint64_t alignment_ = 32;
};

}  // namespace meshnet::gguf
