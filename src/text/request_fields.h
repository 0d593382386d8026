// Reads the fields of one JSON object of a request strictly: a wrong type or an out-of-range value is an error that names the field, and a
// field that nobody read is refused instead of ignored. Pure.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "text/text_model.h"

namespace meshnet::text {

// A field that is not honoured: accepted and dropped, or refused, each for a reason.
struct KnownField {
  const char* name;
  const char* reason;
};

class FieldReader {
 public:
  // `object` is borrowed and must be a JSON object. `path` is the JSON path in front of the names, e.g. "tools[0].".
  explicit FieldReader(const nlohmann::ordered_json& object, std::string path = "") : object_(object), path_(std::move(path)) {}

  // Each returns nothing when the field is absent or null (clients send null for "default"), and when it is wrong; the first fault is kept.
  std::optional<bool> Boolean(const char* name);
  std::optional<int64_t> Integer(const char* name, int64_t min, int64_t max);
  // A finite number that a float holds.
  std::optional<double> Number(const char* name, double min, double max);
  std::optional<std::string> String(const char* name, size_t bytes_max);
  // Of any type; the caller checks it.
  const nlohmann::ordered_json* Value(const char* name);
  const nlohmann::ordered_json* Array(const char* name, size_t count_max);
  const nlohmann::ordered_json* Object(const char* name);

  bool has(const char* name) const { return object_.contains(name) && !object_.at(name).is_null(); }

  // Keeps the first fault. `param` is a whole JSON path.
  void Fail(const std::string& param, const std::string& message);
  void FailField(const char* name, const std::string& message) { Fail(path_ + name, "\"" + path_ + name + "\" " + message); }

  // Refuses what was neither read nor is in `ignored`; `refused` gives the reason where one is known.
  void RefuseRest(std::span<const KnownField> ignored, std::span<const KnownField> refused);

  bool ok() const { return !error_.has_value(); }
  const ApiError& error() const { return *error_; }

 private:
  // The value, marked as read; null when absent or JSON null.
  const nlohmann::ordered_json* Find(const char* name);

  const nlohmann::ordered_json& object_;
  std::string path_;
  std::set<std::string, std::less<>> read_;
  std::optional<ApiError> error_;
};

ApiError BadRequest(std::string param, std::string message);

// "a boolean", "an array": for messages.
const char* TypeName(const nlohmann::ordered_json& value);

}  // namespace meshnet::text
