// The keywords of JSON schemas: which concern values of which type, and which no value at all.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

namespace meshnet::text {

inline bool Contains(std::span<const std::string_view> list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

// Say something about a value, constrain nothing.
inline constexpr std::array<std::string_view, 22> kAnnotations = {
    "title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "$comment", "$schema", "$id", "$anchor", "$defs",
    "definitions", "contentEncoding", "contentMediaType", "contentSchema", "discriminator", "format", "id", "markdownDescription", "enumDescriptions"};

// Keywords that only concern values of one type; beside another type they constrain nothing.
inline constexpr std::array<std::string_view, 3> kOfStrings = {"pattern", "minLength", "maxLength"};
inline constexpr std::array<std::string_view, 5> kOfNumbers = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"};
inline constexpr std::array<std::string_view, 10> kOfArrays = {"items", "prefixItems", "minItems", "maxItems", "uniqueItems", "additionalItems",
                                                               "contains", "minContains", "maxContains", "unevaluatedItems"};
inline constexpr std::array<std::string_view, 11> kOfObjects = {"properties", "required", "additionalProperties", "patternProperties", "propertyNames",
                                                                "minProperties", "maxProperties", "dependentRequired", "dependentSchemas", "dependencies",
                                                                "unevaluatedProperties"};
inline constexpr std::array<std::string_view, 7> kTypes = {"object", "array", "string", "number", "integer", "boolean", "null"};
inline constexpr std::array<std::string_view, 8> kEnforcedFormats = {"date", "time", "date-time", "uuid", "uuid1", "uuid2", "uuid3", "uuid4"};

// The keyword concerns only values of types other than this one.
inline bool IsOfOtherType(std::string_view keyword, std::string_view type) {
  return (Contains(kOfStrings, keyword) && type != "string") || (Contains(kOfNumbers, keyword) && type != "number" && type != "integer") ||
         (Contains(kOfArrays, keyword) && type != "array") || (Contains(kOfObjects, keyword) && type != "object" && type != "allOf");
}

inline bool HasType(const nlohmann::ordered_json& value, std::string_view type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  if (type == "integer") return value.is_number_integer() || (value.is_number_float() && value.get<double>() == std::floor(value.get<double>()));
  return value.is_number();
}

}  // namespace meshnet::text
