// Turns the bytes of a request into JSON, or says why not, before anything recursive sees them. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "text/text_model.h"

namespace meshnet::text {

struct JsonBounds {
  size_t bytes_max = 32u << 20;
  size_t depth_max = 128;          // containers inside each other; copying, printing and destroying recurse that deep
  size_t values_max = 2u << 20;    // values in all: each costs far more memory than its bytes
  // Comparisons that building all objects takes: an object of n keys costs n*n/2, since ordered_json searches its keys one by one.
  uint64_t key_comparisons_max = 16u << 20;
};

// A JSON object within the bounds. Refused, with the place: bad syntax, invalid UTF-8, numbers no double can hold, keys that come twice in one
// object (readers disagree which one counts), deep nesting, anything that is not an object.
std::variant<nlohmann::ordered_json, ApiError> ParseObject(std::string_view body, const JsonBounds& bounds);

// Why `text` is not one JSON value within the bounds: a sentence. Nothing when it is. A whole text inside a string of a request is checked so.
std::optional<std::string> JsonFault(std::string_view text, const JsonBounds& bounds);

}  // namespace meshnet::text
