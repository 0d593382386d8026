#include "gguf/manifest.h"

#include <algorithm>
#include <cstdio>

#include "base/sha256.h"
#include "gguf/architecture_table.h"
#include "gguf/ggml_types.h"

namespace meshnet::gguf {
namespace {

constexpr char kTitle[] = "meshnet-manifest 1\n";
constexpr size_t kPlainBytesMax = 64;

bool IsReal(ValueType type) { return type == ValueType::kFloat32 || type == ValueType::kFloat64; }

// A number reads the same whatever integer or float type a converter chose for it.
std::string NumberText(const MetadataEntry& entry, ValueType type, uint64_t index) {
  char text[40];
  if (IsReal(type)) {
    std::snprintf(text, sizeof(text), "%.17g", entry.Real(index).value_or(0));
  } else {
    // Only an unsigned number beyond 63 bits is no Integer(): its bytes then stand for themselves.
    const std::optional<int64_t> value = entry.Integer(index);
    if (!value.has_value()) return "u64:" + Sha256().Update(entry.raw).Digest().Hex();
    std::snprintf(text, sizeof(text), "%lld", static_cast<long long>(*value));
  }
  return text;
}

std::string StringText(const std::string& value) {
  const bool plain = value.size() <= kPlainBytesMax && std::all_of(value.begin(), value.end(), [](char c) {
    return c >= 0x20 && c < 0x7f && c != '"' && c != '\\';
  });
  return plain ? '"' + value + '"' : "sha256:" + Sha256().Update(value).Digest().Hex();
}

std::string ArrayText(const MetadataEntry& entry) {
  Sha256 sha;
  if (entry.element_type == ValueType::kString) {
    for (const std::string& text : entry.strings) {
      const uint64_t size = text.size();
      sha.Update(std::string_view(reinterpret_cast<const char*>(&size), sizeof(size))).Update(text);
    }
  } else {
    for (uint64_t i = 0; i < entry.count; ++i) {
      const double real = IsReal(entry.element_type) ? entry.Real(i).value_or(0) : 0;
      const int64_t whole = entry.Integer(i).value_or(0);
      sha.Update(std::string_view(IsReal(entry.element_type) ? reinterpret_cast<const char*>(&real) : reinterpret_cast<const char*>(&whole), 8));
    }
  }
  return "[" + std::to_string(entry.count) + "] sha256:" + sha.Digest().Hex();
}

// An array with the same value for every layer says what a scalar says, and converters write either.
bool IsUniformPerLayer(const MetadataEntry& entry, const std::string& architecture, std::optional<int64_t> block_count) {
  if (!IsPerLayerKey(entry.key, architecture) || entry.element_type == ValueType::kString || entry.count == 0 ||
      static_cast<int64_t>(entry.count) != block_count.value_or(-1)) {
    return false;
  }
  for (uint64_t i = 1; i < entry.count; ++i) {
    if (entry.Real(i) != entry.Real(0)) return false;
  }
  return true;
}

std::string ValueText(const MetadataEntry& entry, const std::string& architecture, std::optional<int64_t> block_count) {
  if (entry.type == ValueType::kString) return StringText(entry.strings[0]);
  if (entry.type != ValueType::kArray) return NumberText(entry, entry.type, 0);
  if (IsUniformPerLayer(entry, architecture, block_count)) return NumberText(entry, entry.element_type, 0);
  return ArrayText(entry);
}

}  // namespace

std::string TensorRow(std::string_view name, uint32_t type, const std::vector<uint64_t>& dims, const Sha256Digest& digest) {
  const GgmlType* known = FindGgmlType(type);
  std::string row = "tensor " + std::string(name) + ' ' + (known == nullptr ? "?" : known->name) + ' ';
  for (size_t i = 0; i < dims.size(); ++i) row += (i == 0 ? "" : "x") + std::to_string(dims[i]);
  return row + ' ' + digest.Hex() + '\n';
}

std::string ManifestText(const ModelFile& file, const std::vector<Sha256Digest>& digests) {
  const std::string architecture = file.String("general.architecture", "");
  const std::optional<int64_t> block_count = file.Integer(architecture + ".block_count");
  std::vector<std::string> keys;
  for (const MetadataEntry& entry : file.metadata()) {
    if (entry.key.starts_with(architecture + ".") || entry.key.starts_with("tokenizer.") || entry.key.starts_with("xielu.")) {
      keys.push_back("key " + entry.key + ' ' + ValueText(entry, architecture, block_count) + '\n');
    }
  }
  std::vector<std::string> rows;
  for (size_t i = 0; i < file.tensors().size(); ++i) {
    const TensorInfo& tensor = file.tensors()[i];
    rows.push_back(TensorRow(tensor.name, tensor.type, tensor.dims, digests[i]));
  }
  // Keys and names hold no blanks, so sorting lines sorts by them.
  std::sort(keys.begin(), keys.end());
  std::sort(rows.begin(), rows.end());
  std::string text = kTitle;
  text += "architecture " + architecture + '\n';
  for (const std::string& line : keys) text += line;
  for (const std::string& line : rows) text += line;
  return text;
}

std::optional<std::unordered_map<std::string, std::string>> TensorRows(std::string_view text) {
  if (!text.starts_with(kTitle)) return std::nullopt;
  std::unordered_map<std::string, std::string> rows;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) return std::nullopt;
    const std::string_view line = text.substr(0, end + 1);
    text.remove_prefix(end + 1);
    if (!line.starts_with("tensor ")) continue;
    const size_t name_end = line.find(' ', 7);
    if (name_end == std::string_view::npos) return std::nullopt;
    rows.emplace(std::string(line.substr(7, name_end - 7)), std::string(line));
  }
  return rows;
}

Sha256Digest RangeDigest(std::vector<std::string> rows) {
  std::sort(rows.begin(), rows.end());
  Sha256 sha;
  for (const std::string& row : rows) sha.Update(row);
  return sha.Digest();
}

}  // namespace meshnet::gguf
