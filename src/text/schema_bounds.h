// Makes a JSON schema safe for llama.cpp's converters (common/json-schema*.cpp) and says what they could not enforce. Pure. Those recurse along
// nesting and $ref chains without a bound, follow a $ref cycle for ever, and silently drop what a grammar cannot say.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>

#include "text/text_model.h"

namespace meshnet::text {

struct SchemaBounds {
  size_t weight_max = 256u << 10;     // of a schema: bytes of its names and strings, and 8 for each value
  size_t copied_weight_max = 1u << 20;  // of what is written out more than once: targets of $ref, what several types of a list share
  size_t depth_max = 64;              // schemas inside each other, $ref followed
  size_t nodes_max = 5000;            // schemas in all, each alternative of a type list counted
  size_t properties_max = 256;        // of one object: llama.cpp needs cubic time for optional ones
  size_t values_max = 2000;           // of one enum
  size_t name_bytes_max = 256;        // of a property
  size_t excluded_name_bytes_max = 100;  // of one beside which others are allowed: the grammar nests one parenthesis a letter
  int64_t count_max = 2000;           // of minLength, maxItems, …: beyond it, llama.cpp drops the bound
};

enum class SchemaUse {
  kEnforce,  // every keyword is enforced, is an annotation, or is refused by its path
  kAdvise,   // a tool that did not ask for `strict`: what cannot be enforced is left to the model, as llama-server does
};

// The schema as llama.cpp is to see it, or a 400 whose param is the path of the culprit; `path` is the path of the schema itself.
// Enforced: type, properties, required, additionalProperties, items, prefixItems, min/maxItems, enum, const, anyOf, oneOf (as anyOf), allOf of objects
// or enums, $ref into the document, pattern, min/maxLength, bounds of integers, formats date, time, date-time and uuid (other formats are
// annotations, as in JSON Schema 2020-12).
std::variant<nlohmann::ordered_json, ApiError> PrepareSchema(const nlohmann::ordered_json& schema, const std::string& path, SchemaUse use,
                                                             const SchemaBounds& bounds);

}  // namespace meshnet::text
