#include "text/schema_bounds.h"

#include <gtest/gtest.h>

namespace meshnet::text {
namespace {

using nlohmann::ordered_json;

std::variant<ordered_json, ApiError> Prepare(const std::string& schema, SchemaUse use) { return PrepareSchema(ordered_json::parse(schema), "s", use, {}); }

std::string Nested(size_t depth) {
  std::string schema = "{\"type\":\"integer\"}";
  for (size_t i = 0; i < depth; ++i) schema = "{\"type\":\"array\",\"items\":" + schema + "}";
  return schema;
}

// #/$defs/d0 -> d1 -> … -> dN, each behind a property.
std::string ReferenceChain(size_t length) {
  std::string schema = R"({"$ref":"#/$defs/d0","$defs":{)";
  for (size_t i = 0; i < length; ++i) {
    schema += "\"d" + std::to_string(i) + R"(":{"type":"object","properties":{"n":{"$ref":"#/$defs/d)" + std::to_string(i + 1) + "\"}}},";
  }
  return schema + "\"d" + std::to_string(length) + "\":{\"type\":\"null\"}}}";
}

struct Refused {
  std::string name;
  std::string schema;
  std::string param;
  bool also_advised = false;  // refused too when it is only advice
};

TEST(SchemaBoundsTest, NamesWhatCannotBeEnforced) {
  const Refused cases[] = {
      {"lookaround", R"x({"type":"string","pattern":"^(?=a)"})x", "s.pattern"},
      {"unknown keyword", R"({"type":"string","frobnicate":1})", "s.frobnicate"},
      {"bound of a number", R"({"type":"object","properties":{"a":{"type":"number","minimum":0}}})", "s.properties.a.minimum"},
      {"multiple", R"({"type":"integer","multipleOf":5})", "s.multipleOf"},
      {"unique", R"({"type":"array","items":{"type":"null"},"uniqueItems":true})", "s.uniqueItems"},
      {"contains", R"({"type":"array","contains":{}})", "s.contains"},
      {"pattern properties", R"({"type":"object","patternProperties":{"^a":{}}})", "s.patternProperties"},
      {"property count", R"({"type":"object","minProperties":2})", "s.minProperties"},
      {"required without property", R"({"type":"object","properties":{"a":{}},"required":["b"]})", "s.required"},
      {"not", R"({"not":{"type":"string"}})", "s.not"},
      {"if", R"({"type":"object","properties":{},"if":{},"then":{}})", "s.if"},
      {"beside a reference", R"({"$ref":"#/$defs/a","minLength":3,"$defs":{"a":{"type":"string"}}})", "s.minLength"},
      {"beside anyOf", R"({"anyOf":[{"type":"string"}],"properties":{"a":{}}})", "s.properties"},
      {"bound without type", R"({"minimum":3})", "s.minimum"},
      {"enum of another type", R"({"type":"string","enum":["a",1]})", "s.enum"},
      {"enum and const", R"({"const":1,"enum":[1,2]})", "s.enum"},
      {"pattern with length", R"({"type":"string","pattern":"^a$","maxLength":3})", "s.pattern"},
      {"format with length", R"({"type":"string","format":"date","maxLength":3})", "s.format"},
      {"long string", R"({"type":"string","maxLength":5000})", "s.maxLength"},
      {"negative count", R"({"type":"array","minItems":-1})", "s.minItems"},
      {"fractional count", R"({"type":"array","minItems":1.5})", "s.minItems"},
      {"far bound", R"({"type":"integer","maximum":1e300})", "s.maximum"},
      {"remote reference", R"({"$ref":"https://example.com/a.json"})", "s.$ref"},
      {"root reference", R"({"type":"object","properties":{"a":{"$ref":"#"}}})", "s.properties.a.$ref"},
      {"dangling reference", R"({"$ref":"#/$defs/x"})", "s.$ref"},
      {"tuple count", R"({"type":"array","prefixItems":[{"type":"null"}],"minItems":2})", "s.prefixItems"},
      {"allOf of strings", R"({"allOf":[{"type":"string"},{"minLength":2}]})", "s.allOf"},
      {"allOf with a common name", R"({"allOf":[{"properties":{"a":{}}},{"properties":{"a":{}}}]})", "s.allOf"},
      // Neither enforced nor sensible as advice: llama.cpp would throw, abort or not end.
      {"cycle of references", R"({"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}})", "s.$defs/b.$ref", true},
      {"reference to itself under allOf", R"({"allOf":[{"$ref":"#/$defs/a"},{"properties":{}}],"$defs":{"a":{"$ref":"#/$defs/a"}}})", "s.allOf", true},
      {"cycle through anyOf", R"({"$ref":"#/$defs/a","$defs":{"a":{"anyOf":[{"type":"null"},{"$ref":"#/$defs/a"}]}}})", "s.$defs/a.anyOf[1].$ref", true},
      {"deep", Nested(65), "s" + [] { std::string path; for (int i = 0; i < 65; ++i) path += ".items"; return path; }(), true},
      {"unknown type", R"({"type":"strnig"})", "s.type", true},
      {"no types", R"({"type":[]})", "s.type", true},
      {"empty enum", R"({"enum":[]})", "s.enum", true},
      {"empty anyOf", R"({"anyOf":[]})", "s.anyOf", true},
      {"false", R"({"type":"object","properties":{"a":false}})", "s.properties.a", true},
      {"not a schema", R"({"type":"array","items":7})", "s.items", true},
      {"crossed bounds", R"({"type":"integer","minimum":5,"maximum":3})", "s", true},
      {"crossed counts", R"({"type":"string","minLength":5,"maxLength":3})", "s.minLength", true},
      {"pattern is a number", R"({"type":"string","pattern":3})", "s.pattern", true},
  };
  for (const Refused& c : cases) {
    SCOPED_TRACE(c.name);
    auto enforced = Prepare(c.schema, SchemaUse::kEnforce);
    ASSERT_TRUE(std::holds_alternative<ApiError>(enforced));
    EXPECT_EQ(std::get<ApiError>(enforced).param, c.param);
    EXPECT_EQ(std::get<ApiError>(enforced).status, 400);
    EXPECT_EQ(std::holds_alternative<ApiError>(Prepare(c.schema, SchemaUse::kAdvise)), c.also_advised);
  }
}

TEST(SchemaBoundsTest, BoundsChainsAndExplosions) {
  auto chain = Prepare(ReferenceChain(2000), SchemaUse::kAdvise);
  ASSERT_TRUE(std::holds_alternative<ApiError>(chain));
  EXPECT_NE(std::get<ApiError>(chain).message.find("deeper than 64"), std::string::npos);
  EXPECT_TRUE(std::holds_alternative<ordered_json>(Prepare(ReferenceChain(20), SchemaUse::kEnforce)));

  // Both types have each level's parts: 2^30 schemas for llama.cpp.
  std::string doubling = "{\"type\":\"null\"}";
  for (int i = 0; i < 30; ++i) doubling = "{\"type\":[\"object\",\"string\"],\"allOf\":[" + doubling + ",{}]}";
  auto exploded = Prepare(doubling, SchemaUse::kAdvise);
  ASSERT_TRUE(std::holds_alternative<ApiError>(exploded));
  EXPECT_NE(std::get<ApiError>(exploded).message.find("more than 5000"), std::string::npos) << std::get<ApiError>(exploded).message;

  std::string wide = "{\"type\":\"object\",\"properties\":{\"a\":{}";
  for (int i = 0; i < 300; ++i) wide += ",\"p" + std::to_string(i) + "\":{}";
  auto too_wide = Prepare(wide + "}}", SchemaUse::kAdvise);
  ASSERT_TRUE(std::holds_alternative<ApiError>(too_wide));
  EXPECT_EQ(std::get<ApiError>(too_wide).param, "s.properties");
}

// One request of 30 MB once made hundreds of copies of it.
TEST(SchemaBoundsTest, BoundsCopies) {
  const std::string text(200u << 10, 'x');
  const auto message = [](const std::string& schema) {
    auto prepared = Prepare(schema, SchemaUse::kAdvise);
    return std::holds_alternative<ApiError>(prepared) ? std::get<ApiError>(prepared).message : std::string();
  };
  EXPECT_NE(message("{\"enum\":[\"" + text + text + "\"]}").find("larger than"), std::string::npos);
  std::string zeros = "0";
  for (int i = 0; i < 40000; ++i) zeros += ",0";
  EXPECT_NE(message("{\"const\":[" + zeros + "]}").find("larger than"), std::string::npos) << "values without a text";
  EXPECT_NE(message(R"({"type":["object","object"]})").find("names a type twice"), std::string::npos);
  // What several types share, and targets that overlap or have several names.
  EXPECT_NE(message(R"({"type":["string","null","boolean","object","array","number","integer"],"x-note":")" + text + "\"}").find("written out"), std::string::npos);
  std::string references = R"("$defs":{"a":{"prefixItems":[{"description":")" + text + R"("}]}})";
  for (int i = 1; i < 7; ++i) references += R"(,"p)" + std::to_string(i) + R"(":{"$ref":"#/properties/$defs/a/prefixItems/)" + std::string(static_cast<size_t>(i), '0') + "\"}";
  EXPECT_NE(message(R"({"type":"object","properties":{)" + references + "}}").find("written out"), std::string::npos);
  // Nothing is copied along the way down.
  std::string deep = "{\"enum\":[\"" + text + "\"]}";
  for (int i = 0; i < 20; ++i) deep = R"({"type":["object","null"],"properties":{"a":)" + deep + "}}";
  EXPECT_EQ(message(deep), "");
}

struct Kept {
  std::string name;
  std::string schema;
  std::string prepared;  // empty: as it was
};

TEST(SchemaBoundsTest, KeepsWhatCanBeEnforced) {
  const Kept cases[] = {
      {"plain object", R"({"type":"object","properties":{"a":{"type":"string","description":"x","default":"y"}},"required":["a"],"additionalProperties":false})", ""},
      {"annotations", R"({"$schema":"x","title":"t","type":"boolean","x-vendor":1,"format":"email"})", ""},
      {"keywords of other types", R"({"type":"null","minLength":3,"minimum":1,"uniqueItems":true,"patternProperties":{}})", ""},
      {"recursion through a property", R"({"$ref":"#/$defs/n","$defs":{"n":{"type":"object","properties":{"next":{"$ref":"#/$defs/n"}}}}})", ""},
      {"pattern", R"({"type":"string","pattern":"^a$"})", R"({"type":"string","pattern":"^([\\x61])$"})"},
      {"one allOf", R"({"description":"d","allOf":[{"type":"string"}]})", R"({"type":"string"})"},
      {"allOf of objects", R"({"allOf":[{"properties":{"a":{"type":"null"}}},{"properties":{"b":{"type":"null"}}}]})", ""},
      {"type list", R"({"type":["string","null"],"minLength":2,"description":"d"})",
       R"({"anyOf":[{"type":"string","minLength":2},{"type":"null"}],"description":"d"})"},
      {"type list with a format", R"({"type":["string","null"],"format":"date"})", R"({"anyOf":[{"type":"string","format":"date"},{"type":"null"}]})"},
      {"type list with parts", R"({"type":["object","array"],"properties":{"a":{}},"items":{}})",
       R"({"anyOf":[{"type":"object","properties":{"a":{}}},{"type":"array","items":{}}]})"},
      {"true", R"({"type":"array","items":true})", R"({"type":"array","items":{}})"},
      {"closed tuple", R"({"type":"array","prefixItems":[{"type":"null"}],"items":false})", R"({"type":"array","prefixItems":[{"type":"null"}]})"},
      {"exclusive bounds", R"({"type":"integer","exclusiveMinimum":1.5,"exclusiveMaximum":9,"maximum":20})", R"({"type":"integer","maximum":8,"minimum":2})"},
      {"enum with type", R"({"type":["string","null"],"enum":["a",null]})", R"({"enum":["a",null]})"},
      {"reference in a definition", R"({"$ref":"#/$defs/a","$defs":{"a":{"type":"string","pattern":"^b$"}}})",
       R"({"$ref":"#/$defs/a","$defs":{"a":{"type":"string","pattern":"^([\\x62])$"}}})"},
  };
  for (const Kept& c : cases) {
    SCOPED_TRACE(c.name);
    auto prepared = Prepare(c.schema, SchemaUse::kEnforce);
    ASSERT_TRUE(std::holds_alternative<ordered_json>(prepared)) << std::get<ApiError>(prepared).message;
    EXPECT_EQ(std::get<ordered_json>(prepared), ordered_json::parse(c.prepared.empty() ? c.schema : c.prepared)) << std::get<ordered_json>(prepared).dump();
  }
}

TEST(SchemaBoundsTest, AdviceLosesOnlyWhatCannotBeSaid) {
  auto prepared = Prepare(R"x({"type":"object","properties":{"u":{"type":"string","format":"uri","pattern":"(?=x)","maxLength":9999},"n":{"type":"number","minimum":0},
                              "r":{"$ref":"http://x/y"}},"required":["u","z"]})x", SchemaUse::kAdvise);
  ASSERT_TRUE(std::holds_alternative<ordered_json>(prepared)) << std::get<ApiError>(prepared).message;
  EXPECT_EQ(std::get<ordered_json>(prepared).dump(),
            R"({"type":"object","properties":{"u":{"type":"string"},"n":{"type":"number","minimum":0},"r":{}},"required":["u","z"]})");
}

}  // namespace
}  // namespace meshnet::text
