#include <cmath>
#include <cstring>

#include "gguf/model_file.h"

namespace meshnet::gguf {
namespace {

template <typename Value>
std::optional<Value> Load(const std::string& raw, uint64_t index) {
  if (index >= raw.size() / sizeof(Value)) return std::nullopt;
  Value value;
  std::memcpy(&value, raw.data() + index * sizeof(Value), sizeof(Value));
  return value;
}

template <typename Value>
std::optional<int64_t> LoadInteger(const std::string& raw, uint64_t index) {
  const std::optional<Value> value = Load<Value>(raw, index);
  if (!value.has_value()) return std::nullopt;
  if constexpr (sizeof(Value) == 8 && !std::is_signed_v<Value>) {
    if (*value > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
  }
  return static_cast<int64_t>(*value);
}

ValueType ElementType(const MetadataEntry& entry) { return entry.type == ValueType::kArray ? entry.element_type : entry.type; }

template <typename Value>
MetadataEntry Scalar(std::string key, ValueType type, Value value) {
  MetadataEntry entry;
  entry.key = std::move(key);
  entry.type = entry.element_type = type;
  entry.raw.resize(sizeof(Value));
  std::memcpy(entry.raw.data(), &value, sizeof(Value));
  return entry;
}

}  // namespace

std::optional<int64_t> MetadataEntry::Integer(uint64_t index) const {
  switch (ElementType(*this)) {
    case ValueType::kUint8: return LoadInteger<uint8_t>(raw, index);
    case ValueType::kInt8: return LoadInteger<int8_t>(raw, index);
    case ValueType::kUint16: return LoadInteger<uint16_t>(raw, index);
    case ValueType::kInt16: return LoadInteger<int16_t>(raw, index);
    case ValueType::kUint32: return LoadInteger<uint32_t>(raw, index);
    case ValueType::kInt32: return LoadInteger<int32_t>(raw, index);
    case ValueType::kUint64: return LoadInteger<uint64_t>(raw, index);
    case ValueType::kInt64: return LoadInteger<int64_t>(raw, index);
    case ValueType::kBool: {
      const std::optional<uint8_t> value = Load<uint8_t>(raw, index);
      return value.has_value() ? std::optional<int64_t>(*value != 0) : std::nullopt;
    }
    case ValueType::kFloat32:
    case ValueType::kFloat64:
    case ValueType::kString:
    case ValueType::kArray: return std::nullopt;
  }
  return std::nullopt;
}

std::optional<double> MetadataEntry::Real(uint64_t index) const {
  if (ElementType(*this) == ValueType::kFloat32) {
    const std::optional<float> value = Load<float>(raw, index);
    return value.has_value() ? std::optional<double>(*value) : std::nullopt;
  }
  if (ElementType(*this) == ValueType::kFloat64) return Load<double>(raw, index);
  const std::optional<int64_t> value = Integer(index);
  return value.has_value() ? std::optional<double>(static_cast<double>(*value)) : std::nullopt;
}

MetadataEntry MetadataEntry::Uint32(std::string key, uint32_t value) { return Scalar(std::move(key), ValueType::kUint32, value); }
MetadataEntry MetadataEntry::Float32(std::string key, float value) { return Scalar(std::move(key), ValueType::kFloat32, value); }
MetadataEntry MetadataEntry::Bool(std::string key, bool value) {
  return Scalar(std::move(key), ValueType::kBool, static_cast<uint8_t>(value));
}

MetadataEntry MetadataEntry::String(std::string key, std::string value) {
  MetadataEntry entry;
  entry.key = std::move(key);
  entry.type = entry.element_type = ValueType::kString;
  entry.strings.push_back(std::move(value));
  return entry;
}

MetadataEntry MetadataEntry::Uint32Array(std::string key, const std::vector<uint32_t>& values) {
  MetadataEntry entry;
  entry.key = std::move(key);
  entry.type = ValueType::kArray;
  entry.element_type = ValueType::kUint32;
  entry.count = values.size();
  entry.raw.assign(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(uint32_t));
  return entry;
}

MetadataEntry MetadataEntry::BoolArray(std::string key, const std::vector<bool>& values) {
  MetadataEntry entry;
  entry.key = std::move(key);
  entry.type = ValueType::kArray;
  entry.element_type = ValueType::kBool;
  entry.count = values.size();
  for (bool value : values) entry.raw.push_back(value ? 1 : 0);
  return entry;
}

}  // namespace meshnet::gguf
