#include "text/schema_bounds.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "text/request_fields.h"
#include "text/schema_keywords.h"
#include "text/schema_pattern.h"

namespace meshnet::text {
namespace {

using nlohmann::ordered_json;

// Bytes of names and strings, and 8 for each value.
size_t WeightOf(const ordered_json& json) {
  size_t weight = 0;
  std::vector<const ordered_json*> todo = {&json};
  while (!todo.empty()) {
    const ordered_json& value = *todo.back();
    todo.pop_back();
    weight += 8 + (value.is_string() ? value.get_ref<const std::string&>().size() : 0);
    if (!value.is_structured()) continue;
    for (const auto& item : value.items()) {
      weight += value.is_object() ? item.key().size() : 0;
      todo.push_back(&item.value());
    }
  }
  return weight;
}

class Walk {
 public:
  Walk(const ordered_json& root, std::string path, SchemaUse use, const SchemaBounds& bounds)
      : root_(root), root_path_(std::move(path)), use_(use), bounds_(bounds) {}

  std::variant<ordered_json, ApiError> Run() {
    if (WeightOf(root_) > bounds_.weight_max) return BadRequest(root_path_, "The schema at \"" + root_path_ + "\" is larger than " + std::to_string(bounds_.weight_max) + " bytes.");
    ordered_json result = Visit(root_, root_path_, 0);
    if (error_) return *error_;
    // Definitions are read where they stand in the root, so their rewritten form goes back there.
    try {
      for (auto& [pointer, schema] : rewritten_) result[ordered_json::json_pointer(pointer)] = std::move(schema);
    } catch (const nlohmann::json::exception&) {
      return BadRequest(root_path_, "The schema at \"" + root_path_ + "\" has a $ref into a part that cannot be kept. Move the target to $defs.");
    }
    return result;
  }

 private:
  bool enforcing() const { return use_ == SchemaUse::kEnforce; }
  void Fail(const std::string& path, const std::string& message) {
    if (!error_) error_ = BadRequest(path, "The schema at \"" + path + "\" " + message);
  }
  // What cannot be said in a grammar: refused when it was to be enforced, dropped otherwise.
  void CannotEnforce(ordered_json* schema, const std::string& path, const std::string& key, const std::string& why) {
    if (enforcing()) Fail(path + "." + key, why);
    schema->erase(key);
  }

  // Of a part that is written out once more: refused when all of them together are too large.
  ordered_json Copy(const ordered_json& part, const std::string& path);

  // Takes the schema and gives it back as llama.cpp is to see it; nothing of it is copied on the way.
  ordered_json Visit(ordered_json schema, const std::string& path, size_t depth);
  void VisitAlternatives(ordered_json* schema, const std::string& path, size_t depth);
  void VisitTypeList(ordered_json* schema, const std::string& path, size_t depth);
  void VisitAllOf(ordered_json* schema, const std::string& path, size_t depth);
  void VisitTyped(ordered_json* schema, const std::string& type, const std::string& path, size_t depth);
  void VisitObject(ordered_json* schema, const std::string& path, size_t depth);
  void VisitArray(ordered_json* schema, const std::string& path, size_t depth);
  void VisitString(ordered_json* schema, const std::string& path);
  void VisitInteger(ordered_json* schema, const std::string& path);
  void VisitReference(ordered_json* schema, const std::string& path, size_t depth);
  void VisitValues(ordered_json* schema, const std::string& path);
  void CheckCounts(ordered_json* schema, const std::string& path, const char* min, const char* max);
  const ordered_json* Resolve(const std::string& reference) const;
  void RefuseRest(ordered_json* schema, const std::string& path, const std::vector<std::string_view>& handled, std::string_view type);
  std::string EffectiveType(const ordered_json& schema, const std::string& path);
  std::vector<const ordered_json*> Components(const ordered_json& all_of) const;

  const ordered_json& root_;
  std::string root_path_;
  SchemaUse use_;
  SchemaBounds bounds_;
  size_t nodes_ = 0;
  size_t copied_weight_ = 0;
  std::map<std::string, ordered_json> rewritten_;   // JSON pointer of a $ref's target -> its new form
  std::set<std::string> references_seen_;
  // References followed since the last property or item: meeting one of them again consumes nothing, so it would never end.
  std::vector<std::string> unguarded_;
  std::optional<ApiError> error_;
};

ordered_json Walk::Copy(const ordered_json& part, const std::string& path) {
  copied_weight_ += WeightOf(part);
  if (copied_weight_ <= bounds_.copied_weight_max) return part;
  Fail(path, "is too large once its references and lists of types are written out.");
  return {};
}

ordered_json Walk::Visit(ordered_json schema, const std::string& path, size_t depth) {
  if (error_) return {};
  if (schema.is_boolean() && schema.get<bool>()) return ordered_json::object();
  if (!schema.is_object()) {
    Fail(path, std::string("must be an object, not ") + TypeName(schema) + ".");
    return {};
  }
  if (depth > bounds_.depth_max) {
    Fail(path, "nests deeper than " + std::to_string(bounds_.depth_max) + " schemas.");
    return {};
  }
  if (++nodes_ > bounds_.nodes_max) {
    Fail(path, "has more than " + std::to_string(bounds_.nodes_max) + " parts.");
    return {};
  }
  // {"allOf": [X]} with nothing but annotations beside it is X: how many generators attach a description to a reference.
  while (schema.contains("allOf") && schema["allOf"].is_array() && schema["allOf"].size() == 1 && schema["allOf"][0].is_object() &&
         std::all_of(schema.items().begin(), schema.items().end(),
                     [](const auto& item) { return item.key() == "allOf" || Contains(kAnnotations, item.key()); })) {
    ordered_json only = std::move(schema["allOf"][0]);
    for (const char* definitions : {"$defs", "definitions"}) {
      if (schema.contains(definitions)) only[definitions] = std::move(schema[definitions]);
    }
    schema = std::move(only);
  }
  if (schema.contains("$ref")) {
    VisitReference(&schema, path, depth);
  } else if (schema.contains("oneOf") || schema.contains("anyOf")) {
    VisitAlternatives(&schema, path, depth);
  } else if (schema.contains("const") || schema.contains("enum")) {
    VisitValues(&schema, path);
  } else if (schema.contains("type") && schema["type"].is_array()) {
    VisitTypeList(&schema, path, depth);
  } else {
    const std::string type = EffectiveType(schema, path);
    if (!error_) VisitTyped(&schema, type, path, depth);
  }
  return schema;
}

// llama.cpp looks at the first of these that is there and at nothing else.
std::string Walk::EffectiveType(const ordered_json& schema, const std::string& path) {
  if (schema.contains("type")) {
    const ordered_json& type = schema["type"];
    if (!type.is_string() || !Contains(kTypes, type.get_ref<const std::string&>())) {
      Fail(path + ".type", "must be one of object, array, string, number, integer, boolean, null, or a list of these.");
      return "";
    }
    const std::string name = type.get<std::string>();
    if (schema.contains("allOf") && (name == "string" || (name == "object" && !schema.contains("properties") &&
                                                           (!schema.contains("additionalProperties") || schema["additionalProperties"] == true)))) {
      return "allOf";
    }
    return name;
  }
  if (schema.contains("properties") || (schema.contains("additionalProperties") && schema["additionalProperties"] != true)) return "object";
  if (schema.contains("allOf")) return "allOf";
  if (schema.contains("items") || schema.contains("prefixItems")) return "array";
  if (schema.contains("pattern") || schema.contains("minLength") || schema.contains("maxLength")) return "string";
  if (schema.contains("format") && schema["format"].is_string() && Contains(kEnforcedFormats, schema["format"].get_ref<const std::string&>())) return "string";
  return "any";
}

void Walk::VisitTyped(ordered_json* schema, const std::string& type, const std::string& path, size_t depth) {
  std::vector<std::string_view> handled = {"type"};
  if (type == "allOf") {
    VisitAllOf(schema, path, depth);
    handled.insert(handled.end(), {"allOf"});
  } else if (type == "object") {
    VisitObject(schema, path, depth);
    handled.insert(handled.end(), {"properties", "required", "additionalProperties"});
  } else if (type == "array") {
    VisitArray(schema, path, depth);
    handled.insert(handled.end(), {"items", "prefixItems", "minItems", "maxItems", "additionalItems"});
    if (schema->contains("uniqueItems") && (*schema)["uniqueItems"] == false) handled.push_back("uniqueItems");
  } else if (type == "string") {
    VisitString(schema, path);
    handled.insert(handled.end(), {"pattern", "minLength", "maxLength"});
  } else if (type == "integer") {
    VisitInteger(schema, path);
    handled.insert(handled.end(), {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"});
  }
  RefuseRest(schema, path, handled, type);
}

// Whatever is left and would constrain a value of this type.
void Walk::RefuseRest(ordered_json* schema, const std::string& path, const std::vector<std::string_view>& handled, std::string_view type) {
  if (!enforcing() || error_) return;
  for (const auto& [key, value] : schema->items()) {
    const std::string_view name = key;
    if (Contains(kAnnotations, name) || name.starts_with("x-") || std::find(handled.begin(), handled.end(), name) != handled.end()) continue;
    if (type != "any" && type != "values" && IsOfOtherType(name, type)) continue;
    Fail(path + "." + key, "cannot be enforced here. Remove it, or ask for a schema that is not strict.");
    return;
  }
}

void Walk::VisitAlternatives(ordered_json* schema, const std::string& path, size_t depth) {
  const std::string key = schema->contains("oneOf") ? "oneOf" : "anyOf";
  ordered_json& alternatives = (*schema)[key];
  if (!alternatives.is_array() || alternatives.empty()) return Fail(path + "." + key, "must be a non-empty array of schemas.");
  for (size_t i = 0; i < alternatives.size(); ++i) {
    alternatives[i] = Visit(std::move(alternatives[i]), path + "." + key + "[" + std::to_string(i) + "]", depth + 1);
  }
  RefuseRest(schema, path, {key}, "values");
}

void Walk::VisitTypeList(ordered_json* schema, const std::string& path, size_t depth) {
  const ordered_json types = std::move((*schema)["type"]);
  schema->erase("type");
  if (types.empty() || types.size() > kTypes.size()) return Fail(path + ".type", "must be one to seven types.");
  // As llama.cpp does it, but with the keywords of other types taken out of each alternative, and what says nothing about a value only once.
  ordered_json result = {{"anyOf", ordered_json::array()}}, shared = ordered_json::object();
  for (auto& [name, value] : schema->items()) (Contains(kAnnotations, name) && name != "format" ? result : shared)[name] = std::move(value);
  const auto concerns = [](const std::string& keyword, const ordered_json& type) {
    const std::string_view name = type.is_string() ? std::string_view(type.get_ref<const std::string&>()) : "";
    return keyword == "format" ? name == "string" : !IsOfOtherType(keyword, name);
  };
  for (auto type = types.begin(); type != types.end() && !error_; ++type) {
    if (std::find(types.begin(), type, *type) != type) return Fail(path + ".type", "names a type twice.");
    ordered_json alternative = {{"type", *type}};
    for (auto& [name, value] : shared.items()) {
      if (!concerns(name, *type)) continue;
      const std::string& keyword = name;
      const bool again = std::any_of(type + 1, types.end(), [&](const ordered_json& other) { return concerns(keyword, other); });
      alternative[name] = again ? Copy(value, path) : std::move(value);
    }
    result["anyOf"].push_back(Visit(std::move(alternative), path, depth + 1));
  }
  *schema = std::move(result);
}

const ordered_json* Walk::Resolve(const std::string& reference) const {
  // Like llama.cpp: keys as they are written, without ~0 and ~1.
  const ordered_json* target = &root_;
  for (size_t begin = 2; begin <= reference.size();) {
    const size_t end = std::min(reference.find('/', begin), reference.size());
    const std::string key = reference.substr(begin, end - begin);
    begin = end + 1;
    if (target->is_object()) {
      auto found = target->find(key);
      if (found == target->end()) return nullptr;
      target = &*found;
    } else if (target->is_array() && !key.empty() && key.size() < 7 && key.find_first_not_of("0123456789") == std::string::npos) {
      const size_t index = std::stoul(key);
      if (index >= target->size()) return nullptr;
      target = &(*target)[index];
    } else {
      return nullptr;
    }
  }
  return target;
}

void Walk::VisitReference(ordered_json* schema, const std::string& path, size_t depth) {
  const ordered_json& value = (*schema)["$ref"];
  if (!value.is_string()) return Fail(path + ".$ref", "must be a string.");
  const std::string reference = value.get<std::string>();
  const bool local = reference.starts_with("#/") && reference.size() <= 1000 && reference.find('~') == std::string::npos;
  const ordered_json* target = local ? Resolve(reference) : nullptr;
  if (target == nullptr) {
    CannotEnforce(schema, path, "$ref", local ? "points to nothing." : "must point into the same document, as in \"#/$defs/name\".");
    return;
  }
  if (std::find(unguarded_.begin(), unguarded_.end(), reference) != unguarded_.end()) {
    return Fail(path + ".$ref", "leads back to itself without a property or item in between.");
  }
  RefuseRest(schema, path, {"$ref"}, "values");
  if (!references_seen_.insert(reference).second) return;
  unguarded_.push_back(reference);
  ordered_json rewritten = Visit(Copy(*target, path), root_path_ + "." + reference.substr(2), depth + 1);
  unguarded_.pop_back();
  rewritten_.emplace(reference.substr(1), std::move(rewritten));
}

void Walk::VisitValues(ordered_json* schema, const std::string& path) {
  const bool constant = schema->contains("const");
  const std::string key = constant ? "const" : "enum";
  const ordered_json values = constant ? ordered_json::array({(*schema)["const"]}) : (*schema)["enum"];
  if (!values.is_array() || values.empty()) return Fail(path + ".enum", "must be a non-empty array.");
  if (values.size() > bounds_.values_max) return Fail(path + ".enum", "has more than " + std::to_string(bounds_.values_max) + " values.");
  std::vector<std::string_view> handled = {key};
  if (schema->contains("type")) {
    // llama.cpp takes the values as they are, so each must be of the type.
    const ordered_json types = (*schema)["type"].is_array() ? (*schema)["type"] : ordered_json::array({(*schema)["type"]});
    for (const ordered_json& value : values) {
      const bool fits = std::any_of(types.begin(), types.end(), [&](const ordered_json& type) {
        return type.is_string() && HasType(value, type.get_ref<const std::string&>());
      });
      if (!fits && enforcing()) return Fail(path + "." + key, "has a value that is not of the type beside it.");
    }
    schema->erase("type");
  }
  RefuseRest(schema, path, handled, "values");
}

// The schemas of an allOf, references followed.
std::vector<const ordered_json*> Walk::Components(const ordered_json& all_of) const {
  std::vector<const ordered_json*> components;
  for (const ordered_json& part : all_of) {
    const ordered_json* component = &part;
    for (int hops = 0; hops < 32 && component != nullptr && component->is_object() && component->contains("$ref"); ++hops) {
      const ordered_json& reference = (*component)["$ref"];
      component = reference.is_string() && reference.get_ref<const std::string&>().starts_with("#/") ? Resolve(reference.get<std::string>()) : nullptr;
    }
    components.push_back(component);
  }
  return components;
}

void Walk::VisitAllOf(ordered_json* schema, const std::string& path, size_t depth) {
  ordered_json& parts = (*schema)["allOf"];
  if (!parts.is_array() || parts.empty()) return Fail(path + ".allOf", "must be a non-empty array of schemas.");
  if (enforcing()) {
    // llama.cpp joins the properties of objects, or intersects enums; anything else it drops.
    std::set<std::string> names;
    size_t objects = 0, enums = 0;
    for (const ordered_json* component : Components(parts)) {
      if (component == nullptr || !component->is_object()) continue;
      if (component->contains("enum")) ++enums;
      if (!component->contains("properties") || !(*component)["properties"].is_object()) continue;
      ++objects;
      if (parts.size() > 1 && component->contains("additionalProperties") && (*component)["additionalProperties"] != true) {
        return Fail(path + ".allOf", "cannot be enforced: a part limits \"additionalProperties\".");
      }
      for (const auto& [name, value] : (*component)["properties"].items()) {
        if (!names.insert(name).second) return Fail(path + ".allOf", "cannot be enforced: two parts name the same property.");
      }
    }
    if (objects != parts.size() && enums != parts.size()) {
      return Fail(path + ".allOf", "can be enforced only if every part is an object with properties, or every part is an enum.");
    }
  }
  for (size_t i = 0; i < parts.size(); ++i) parts[i] = Visit(std::move(parts[i]), path + ".allOf[" + std::to_string(i) + "]", depth + 1);
}

void Walk::VisitObject(ordered_json* schema, const std::string& path, size_t depth) {
  std::vector<std::string> outer;
  std::swap(outer, unguarded_);
  std::set<std::string> names;
  if (schema->contains("properties")) {
    ordered_json& properties = (*schema)["properties"];
    if (!properties.is_object()) return Fail(path + ".properties", "must be an object.");
    if (properties.size() > bounds_.properties_max) {
      return Fail(path + ".properties", "has more than " + std::to_string(bounds_.properties_max) + " properties.");
    }
    for (auto& [name, property] : properties.items()) {
      if (name.size() > bounds_.name_bytes_max) return Fail(path + ".properties", "has a name of more than " + std::to_string(bounds_.name_bytes_max) + " bytes.");
      names.insert(name);
      property = Visit(std::move(property), path + ".properties." + name, depth + 1);
    }
  }
  const bool open = schema->contains("additionalProperties") && (*schema)["additionalProperties"] != false;
  if (open && std::any_of(names.begin(), names.end(), [&](const std::string& name) { return name.size() > bounds_.excluded_name_bytes_max; })) {
    return Fail(path + ".properties", "has a name of more than " + std::to_string(bounds_.excluded_name_bytes_max) + " bytes beside \"additionalProperties\".");
  }
  if (schema->contains("additionalProperties") && !(*schema)["additionalProperties"].is_boolean()) {
    (*schema)["additionalProperties"] = Visit(std::move((*schema)["additionalProperties"]), path + ".additionalProperties", depth + 1);
  }
  std::swap(outer, unguarded_);
  if (!schema->contains("required") || error_) return;
  const ordered_json& required = (*schema)["required"];
  if (!required.is_array()) return CannotEnforce(schema, path, "required", "must be an array of names.");
  for (const ordered_json& name : required) {
    if (enforcing() && (!name.is_string() || !names.contains(name.get<std::string>()))) {
      return Fail(path + ".required", "names something that is not among the properties.");
    }
  }
}

void Walk::VisitArray(ordered_json* schema, const std::string& path, size_t depth) {
  CheckCounts(schema, path, "minItems", "maxItems");
  if (error_) return;
  std::vector<std::string> outer;
  std::swap(outer, unguarded_);
  if (schema->contains("prefixItems") && schema->contains("items")) {
    // llama.cpp looks at `items` alone; closed tuples are said with `prefixItems` alone.
    if ((*schema)["items"] == false) {
      schema->erase("items");
    } else {
      CannotEnforce(schema, path, "prefixItems", "cannot be enforced beside \"items\".");
    }
  }
  const std::string key = schema->contains("items") ? "items" : "prefixItems";
  if (schema->contains(key)) {
    ordered_json& items = (*schema)[key];
    if (!items.is_array()) {
      items = Visit(std::move(items), path + "." + key, depth + 1);
    } else {
      for (size_t i = 0; i < items.size(); ++i) items[i] = Visit(std::move(items[i]), path + "." + key + "[" + std::to_string(i) + "]", depth + 1);
      // A tuple always has exactly its items.
      const int64_t count = static_cast<int64_t>(items.size());
      if (enforcing() && (schema->value("minItems", count) > count || schema->value("maxItems", count) < count)) {
        Fail(path + "." + key, "does not have as many items as \"minItems\" and \"maxItems\" ask for.");
      }
    }
  }
  std::swap(outer, unguarded_);
}

void Walk::VisitString(ordered_json* schema, const std::string& path) {
  CheckCounts(schema, path, "minLength", "maxLength");
  if (error_) return;
  const bool counted = schema->contains("minLength") || schema->contains("maxLength");
  if (schema->contains("format") && (!(*schema)["format"].is_string() || schema->contains("pattern"))) schema->erase("format");
  const bool formatted = schema->contains("format") && Contains(kEnforcedFormats, (*schema)["format"].get_ref<const std::string&>());
  if (formatted && counted) return CannotEnforce(schema, path, "format", "cannot be enforced beside \"minLength\" or \"maxLength\".");
  if (!schema->contains("pattern")) return;
  const ordered_json& pattern = (*schema)["pattern"];
  if (!pattern.is_string()) return Fail(path + ".pattern", "must be a string.");
  PatternRewrite rewrite = RewritePattern(pattern.get_ref<const std::string&>());
  if (!rewrite.ok) return CannotEnforce(schema, path, "pattern", "cannot be enforced: it " + rewrite.fault + ".");
  if (counted) return CannotEnforce(schema, path, "pattern", "cannot be enforced beside \"minLength\" or \"maxLength\".");
  (*schema)["pattern"] = std::move(rewrite.pattern);
}

void Walk::VisitInteger(ordered_json* schema, const std::string& path) {
  double low = -9e15, high = 9e15;
  for (const char* key : {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"}) {
    if (!schema->contains(key)) continue;
    const ordered_json& bound = (*schema)[key];
    if (!bound.is_number() || std::fabs(bound.get<double>()) > 9e15) {
      CannotEnforce(schema, path, key, "must be a number between -9e15 and 9e15.");
      continue;
    }
    const std::string_view name = key;
    const double value = bound.get<double>();
    if (name == "minimum") low = std::max(low, std::ceil(value));
    if (name == "exclusiveMinimum") low = std::max(low, std::floor(value) + 1);
    if (name == "maximum") high = std::min(high, std::floor(value));
    if (name == "exclusiveMaximum") high = std::min(high, std::ceil(value) - 1);
  }
  if (low > high) return Fail(path, "has a lower bound above its upper one.");
  // llama.cpp looks at one bound a side.
  const auto set = [&](const char* inclusive, const char* exclusive, double value) {
    if (!schema->contains(inclusive) && !schema->contains(exclusive)) return;
    schema->erase(exclusive);
    (*schema)[inclusive] = static_cast<int64_t>(value);
  };
  set("minimum", "exclusiveMinimum", low);
  set("maximum", "exclusiveMaximum", high);
}

void Walk::CheckCounts(ordered_json* schema, const std::string& path, const char* min, const char* max) {
  for (const char* key : {min, max}) {
    if (!schema->contains(key)) continue;
    const ordered_json& count = (*schema)[key];
    const bool whole = count.is_number() && count.get<double>() == std::floor(count.get<double>()) && count.get<double>() >= 0;
    if (!whole || count.get<double>() > static_cast<double>(bounds_.count_max)) {
      CannotEnforce(schema, path, key, "must be an integer from 0 to " + std::to_string(bounds_.count_max) + ".");
    } else {
      (*schema)[key] = static_cast<int64_t>(count.get<double>());
    }
  }
  if (schema->contains(min) && schema->contains(max) && (*schema)[min].get<int64_t>() > (*schema)[max].get<int64_t>()) {
    Fail(path + "." + min, "is above \"" + std::string(max) + "\".");
  }
}

}  // namespace

std::variant<ordered_json, ApiError> PrepareSchema(const ordered_json& schema, const std::string& path, SchemaUse use, const SchemaBounds& bounds) {
  return Walk(schema, path, use, bounds).Run();
}

}  // namespace meshnet::text
