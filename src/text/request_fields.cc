#include "text/request_fields.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdio>

namespace meshnet::text {
namespace {

// At most that much of a user's field name comes back in an error.
constexpr size_t kNameBytesMax = 100;

std::string Text(double number) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.7g", number);
  return buffer;
}

template <typename Number>
std::string OutOfRange(Number min, Number max, const std::string& lowest, const std::string& highest) {
  const bool open_below = min == std::numeric_limits<Number>::lowest();
  const bool open_above = max == std::numeric_limits<Number>::max();
  if (open_below && open_above) return "is too large a number.";
  if (open_above) return "must be at least " + lowest + ".";
  if (open_below) return "must be at most " + highest + ".";
  return "must be between " + lowest + " and " + highest + ".";
}

const KnownField* FindKnown(std::span<const KnownField> fields, std::string_view name) {
  auto found = std::find_if(fields.begin(), fields.end(), [&](const KnownField& field) { return name == field.name; });
  return found == fields.end() ? nullptr : &*found;
}

}  // namespace

const char* TypeName(const nlohmann::ordered_json& value) {
  switch (value.type()) {
    case nlohmann::ordered_json::value_t::null: return "null";
    case nlohmann::ordered_json::value_t::boolean: return "a boolean";
    case nlohmann::ordered_json::value_t::string: return "a string";
    case nlohmann::ordered_json::value_t::array: return "an array";
    case nlohmann::ordered_json::value_t::object: return "an object";
    case nlohmann::ordered_json::value_t::number_integer:
    case nlohmann::ordered_json::value_t::number_unsigned:
    case nlohmann::ordered_json::value_t::number_float: return "a number";
    case nlohmann::ordered_json::value_t::binary:
    case nlohmann::ordered_json::value_t::discarded: break;
  }
  return "nothing";
}

ApiError BadRequest(std::string param, std::string message) {
  ApiError error;
  error.message = std::move(message);
  error.param = std::move(param);
  return error;
}

const nlohmann::ordered_json* FieldReader::Find(const char* name) {
  read_.insert(name);
  auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<bool> FieldReader::Boolean(const char* name) {
  const auto* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  FailField(name, std::string("must be a boolean, not ") + TypeName(*value) + ".");
  return std::nullopt;
}

std::optional<int64_t> FieldReader::Integer(const char* name, int64_t min, int64_t max) {
  const auto* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) {
    FailField(name, std::string("must be an integer, not ") + TypeName(*value) + ".");
    return std::nullopt;
  }
  // 5.0 is an integer to most languages that write JSON.
  const double number = value->get<double>();
  if (value->is_number_float() && (number != std::floor(number) || std::fabs(number) > 9e15)) {
    FailField(name, "must be an integer.");
    return std::nullopt;
  }
  const bool beyond = value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  const int64_t integer = beyond ? INT64_MAX : value->is_number_float() ? static_cast<int64_t>(number) : value->get<int64_t>();
  if (beyond || integer < min || integer > max) {
    FailField(name, OutOfRange(min, max, std::to_string(min), std::to_string(max)));
    return std::nullopt;
  }
  return integer;
}

std::optional<double> FieldReader::Number(const char* name, double min, double max) {
  const auto* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) {
    FailField(name, std::string("must be a number, not ") + TypeName(*value) + ".");
    return std::nullopt;
  }
  const double number = value->get<double>();
  if (!std::isfinite(number) || std::fabs(number) > FLT_MAX || number < min || number > max) {
    FailField(name, OutOfRange(min, max, Text(min), Text(max)));
    return std::nullopt;
  }
  return number;
}

std::optional<std::string> FieldReader::String(const char* name, size_t bytes_max) {
  const auto* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) {
    FailField(name, std::string("must be a string, not ") + TypeName(*value) + ".");
    return std::nullopt;
  }
  if (value->get_ref<const std::string&>().size() > bytes_max) {
    FailField(name, "is longer than " + std::to_string(bytes_max) + " bytes.");
    return std::nullopt;
  }
  return value->get<std::string>();
}

const nlohmann::ordered_json* FieldReader::Value(const char* name) { return Find(name); }

const nlohmann::ordered_json* FieldReader::Array(const char* name, size_t count_max) {
  const auto* value = Find(name);
  if (value == nullptr) return nullptr;
  if (!value->is_array()) {
    FailField(name, std::string("must be an array, not ") + TypeName(*value) + ".");
    return nullptr;
  }
  if (value->size() > count_max) {
    FailField(name, "has more than " + std::to_string(count_max) + " elements.");
    return nullptr;
  }
  return value;
}

const nlohmann::ordered_json* FieldReader::Object(const char* name) {
  const auto* value = Find(name);
  if (value == nullptr) return nullptr;
  if (value->is_object()) return value;
  FailField(name, std::string("must be an object, not ") + TypeName(*value) + ".");
  return nullptr;
}

void FieldReader::Fail(const std::string& param, const std::string& message) {
  if (!error_) error_ = BadRequest(param, message);
}

void FieldReader::RefuseRest(std::span<const KnownField> ignored, std::span<const KnownField> refused) {
  for (const auto& [name, value] : object_.items()) {
    if (read_.contains(name) || FindKnown(ignored, name) != nullptr) continue;
    const KnownField* known = FindKnown(refused, name);
    // Null asks for the default, and the default of what we do not have is not to have it.
    if (known != nullptr && value.is_null()) continue;
    const std::string shown = path_ + name.substr(0, kNameBytesMax);
    Fail(shown, "\"" + shown + "\" is not supported" + (known != nullptr ? std::string(": ") + known->reason : "") + ".");
  }
}

}  // namespace meshnet::text
