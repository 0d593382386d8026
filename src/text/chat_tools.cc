#include "text/chat_tools.h"

#include <algorithm>

#include "protocol/sampling_limits.h"
#include "text/answer_fields.h"
#include "text/schema_bounds.h"

namespace meshnet::text {
namespace {

using nlohmann::ordered_json;

void Take(FieldReader& fields, const FieldReader& inner) {
  if (!inner.ok()) fields.Fail(inner.error().param, inner.error().message);
}

bool IsToolName(const std::string& name) {
  return !name.empty() && name.size() <= 128 && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.' || c == ':' || c == '/';
  });
}

ordered_json Prepared(FieldReader& fields, const ordered_json& schema, const std::string& path, SchemaUse use) {
  auto prepared = PrepareSchema(schema, path, use, {});
  if (auto* error = std::get_if<ApiError>(&prepared)) {
    fields.Fail(error->param, error->message);
    return {};
  }
  return std::get<ordered_json>(std::move(prepared));
}

ordered_json ReadTool(FieldReader& fields, const ordered_json& source, const std::string& path) {
  if (!source.is_object()) {
    fields.Fail(path, "\"" + path + "\" must be an object.");
    return {};
  }
  static constexpr KnownField kIgnored[] = {{"cache_control", "caching needs no marks"}};
  FieldReader tool(source, path + ".");
  if (tool.String("type", 100).value_or("function") != "function" && tool.ok()) tool.FailField("type", "must be \"function\".");
  const ordered_json* function = tool.Object("function");
  if (function == nullptr && tool.ok()) tool.FailField("function", "is required.");
  tool.RefuseRest(kIgnored, {});
  Take(fields, tool);
  if (!tool.ok()) return {};

  FieldReader inner(*function, path + ".function.");
  const std::string name = inner.String("name", 1000).value_or("");
  const std::string description = inner.String("description", 256u << 10).value_or("");
  const bool strict = inner.Boolean("strict").value_or(false);
  const ordered_json* parameters = inner.Object("parameters");
  inner.RefuseRest(kIgnored, {});
  if (inner.ok() && !IsToolName(name)) inner.FailField("name", "must be 1 to 128 letters, digits or _-.:/ characters.");
  Take(fields, inner);
  if (!inner.ok()) return {};
  ordered_json result = {{"name", name}};
  if (!description.empty()) result["description"] = description;
  if (parameters != nullptr && !parameters->empty()) {
    result["parameters"] = Prepared(fields, *parameters, path + ".function.parameters", strict ? SchemaUse::kEnforce : SchemaUse::kAdvise);
  }
  return {{"type", "function"}, {"function", std::move(result)}};
}

void ReadTools(FieldReader& fields, Constraint* constraint) {
  const ordered_json* tools = fields.Array("tools", kToolsMax);
  if (tools == nullptr) return;
  std::vector<std::string> names;
  for (size_t i = 0; i < tools->size() && fields.ok(); ++i) {
    const std::string path = "tools[" + std::to_string(i) + "]";
    ordered_json tool = ReadTool(fields, (*tools)[i], path);
    if (!fields.ok()) return;
    names.push_back(tool["function"]["name"].get<std::string>());
    if (std::find(names.begin(), names.end() - 1, names.back()) != names.end() - 1) {
      return fields.Fail(path + ".function.name", "\"" + path + ".function.name\" is the name of an earlier tool too.");
    }
    constraint->tools.push_back(std::move(tool));
  }
}

// llama-server takes an object for "auto"; here the named tool is the only one the model sees, and it must be called.
void ChooseNamed(FieldReader& fields, const ordered_json& choice, Constraint* constraint) {
  FieldReader outer(choice, "tool_choice.");
  const std::string type = outer.String("type", 100).value_or("");
  const ordered_json* function = outer.Object("function");
  outer.RefuseRest({}, {});
  if (outer.ok() && type != "function") outer.FailField("type", "must be \"function\".");
  if (outer.ok() && function == nullptr) outer.FailField("function", "is required.");
  Take(fields, outer);
  if (!outer.ok()) return;
  FieldReader inner(*function, "tool_choice.function.");
  const std::string name = inner.String("name", 1000).value_or("");
  inner.RefuseRest({}, {});
  Take(fields, inner);
  for (const ordered_json& tool : constraint->tools) {
    if (tool["function"]["name"] != name) continue;
    ordered_json only = ordered_json::array({tool});
    constraint->tools = std::move(only);
    constraint->tool_choice = ToolChoice::kRequired;
    return;
  }
  fields.Fail("tool_choice.function.name", "\"tool_choice.function.name\" names no tool of this request.");
}

void ReadToolChoice(FieldReader& fields, Constraint* constraint) {
  const ordered_json* choice = fields.Value("tool_choice");
  constraint->parallel_tool_calls = fields.Boolean("parallel_tool_calls");
  if (!constraint->tools.empty()) constraint->tool_choice = ToolChoice::kAuto;
  if (choice == nullptr || !fields.ok()) return;
  if (choice->is_object()) return ChooseNamed(fields, *choice, constraint);
  if (*choice == "none") {
    constraint->tool_choice = ToolChoice::kNone;
  } else if (*choice == "required") {
    if (constraint->tools.empty()) return fields.FailField("tool_choice", "is \"required\", but there are no tools.");
    constraint->tool_choice = ToolChoice::kRequired;
  } else if (*choice != "auto") {
    fields.FailField("tool_choice", "must be \"none\", \"auto\", \"required\" or an object that names a function.");
  }
}

void ReadResponseFormat(FieldReader& fields, Constraint* constraint) {
  const ordered_json* format = fields.Object("response_format");
  if (format == nullptr) return;
  FieldReader outer(*format, "response_format.");
  const std::string type = outer.String("type", 100).value_or("text");
  if (type == "json_object") {
    // llama-server's extension: a schema right here.
    const ordered_json* schema = outer.Object("schema");
    constraint->schema_path = schema != nullptr ? "response_format.schema" : "response_format";
    constraint->schema = schema != nullptr && !schema->empty() ? Prepared(fields, *schema, constraint->schema_path, SchemaUse::kEnforce)
                                                               : ordered_json{{"type", "object"}};
  } else if (type == "json_schema") {
    const ordered_json* wrapper = outer.Object("json_schema");
    if (wrapper == nullptr) {
      outer.FailField("json_schema", "is required.");
    } else {
      FieldReader inner(*wrapper, "response_format.json_schema.");
      inner.String("name", 256);
      inner.String("description", 256u << 10);
      // Enforced unless a client says that it need not be.
      const bool strict = inner.Boolean("strict").value_or(true);
      const ordered_json* schema = inner.Object("schema");
      inner.RefuseRest({}, {});
      constraint->schema_path = "response_format.json_schema.schema";
      if (inner.ok() && schema == nullptr) inner.FailField("schema", "is required.");
      Take(fields, inner);
      if (!inner.ok()) return;
      constraint->schema = schema->empty() ? ordered_json{{"type", "object"}}
                                           : Prepared(fields, *schema, constraint->schema_path, strict ? SchemaUse::kEnforce : SchemaUse::kAdvise);
    }
  } else if (type != "text") {
    outer.FailField("type", "must be \"text\", \"json_object\" or \"json_schema\".");
  }
  outer.RefuseRest({}, {});
  Take(fields, outer);
}

}  // namespace

Constraint ReadConstraint(FieldReader& fields, ApiKind kind) {
  Constraint constraint;
  if (kind == ApiKind::kChat) {
    ReadTools(fields, &constraint);
    ReadToolChoice(fields, &constraint);
  }
  ReadResponseFormat(fields, &constraint);
  if (const ordered_json* schema = fields.Object("json_schema")) {
    if (constraint.schema) fields.FailField("json_schema", "cannot be used together with \"response_format\".");
    constraint.schema_path = "json_schema";
    constraint.schema = schema->empty() ? ordered_json{{"type", "object"}} : Prepared(fields, *schema, "json_schema", SchemaUse::kEnforce);
  }
  constraint.grammar = fields.String("grammar", kGrammarBytesMax).value_or("");
  if (!constraint.grammar.empty() && constraint.schema) fields.FailField("grammar", "cannot be used together with \"" + constraint.schema_path + "\".");
  // llama.cpp would follow the schema and never let a tool be called.
  if (constraint.tool_choice != ToolChoice::kNone) {
    const std::string other = constraint.schema ? constraint.schema_path : !constraint.grammar.empty() ? "grammar" : "";
    if (!other.empty()) fields.Fail(other, "\"" + other + "\" cannot be used together with \"tools\" unless \"tool_choice\" is \"none\".");
  }
  return constraint;
}

}  // namespace meshnet::text
