// `tools`, `tool_choice`, `response_format`, `json_schema` and `grammar` of a request: what constrains the answer. Pure.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "text/request_fields.h"
#include "text/text_model.h"

namespace meshnet::text {

inline constexpr size_t kToolsMax = 256;

enum class ToolChoice { kNone, kAuto, kRequired };

struct Constraint {
  nlohmann::ordered_json tools = nlohmann::ordered_json::array();  // as OpenAI's, schemas prepared; only the named one when one is named
  ToolChoice tool_choice = ToolChoice::kNone;                      // kNone without tools
  std::optional<bool> parallel_tool_calls;
  std::optional<nlohmann::ordered_json> schema;                    // prepared
  std::string schema_path;                                         // where it stood, for errors
  std::string grammar;
};

// Reads the fields and checks that they can be honoured together.
Constraint ReadConstraint(FieldReader& fields, ApiKind kind);

}  // namespace meshnet::text
