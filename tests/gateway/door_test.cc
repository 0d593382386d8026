// Who gets in, and what everybody else is told.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "gateway_bed.h"

namespace meshnet::gateway {
namespace {

using nlohmann::json;

std::string KeyFile(const std::string& content) {
  const std::string path = ::testing::TempDir() + "/keys_" + ::testing::UnitTest::GetInstance()->current_test_info()->name();
  std::ofstream(path) << content;
  return path;
}

BedOptions WithKeys() {
  BedOptions options;
  options.gateway.api_key_file = KeyFile("alice:sk-alice\nbob:sk-bob\n");
  return options;
}

const json kRequest = {{"prompt", "a prompt that is long enough to be worth keeping around"}, {"max_tokens", 4}, {"temperature", 0}};

TEST(DoorTest, ErrorsAreOpenAiJsonWithAStatus) {
  GatewayBed bed;
  const struct {
    const char* name;
    std::string method, path, body;
    int status;
    const char* type;
    const char* code;   // null: any
    const char* param;  // null: any
  } rows[] = {
      {"unknown path", "GET", "/nothing", "", 404, "not_found_error", nullptr, nullptr},
      {"wrong method", "GET", "/v1/chat/completions", "", 405, "invalid_request_error", nullptr, nullptr},
      {"wrong method on a probe", "POST", "/health", "{}", 405, "invalid_request_error", nullptr, nullptr},
      {"put", "PUT", "/v1/models", "{}", 405, "invalid_request_error", nullptr, nullptr},
      {"embeddings", "POST", "/v1/embeddings", "{}", 501, "not_supported_error", nullptr, nullptr},
      {"audio", "POST", "/v1/audio/transcriptions", "{}", 501, "not_supported_error", nullptr, nullptr},
      {"images", "POST", "/v1/images/generations", "{}", 501, "not_supported_error", nullptr, nullptr},
      {"files", "GET", "/v1/files", "", 501, "not_supported_error", nullptr, nullptr},
      {"batches", "POST", "/v1/batches", "{}", 501, "not_supported_error", nullptr, nullptr},
      {"not JSON", "POST", "/v1/chat/completions", "{", 400, "invalid_request_error", nullptr, nullptr},
      {"an array", "POST", "/v1/chat/completions", "[]", 400, "invalid_request_error", nullptr, nullptr},
      {"no messages", "POST", "/v1/chat/completions", "{}", 400, "invalid_request_error", nullptr, "messages"},
      {"unknown field", "POST", "/v1/completions", R"({"prompt":"a","frobnicate":1})", 400, "invalid_request_error", nullptr, "frobnicate"},
      {"bad n", "POST", "/v1/completions", R"({"prompt":"a","n":0})", 400, "invalid_request_error", nullptr, "n"},
      {"large n", "POST", "/v1/completions", R"({"prompt":"a","n":1000})", 400, "invalid_request_error", nullptr, "n"},
      {"unknown model", "POST", "/v1/completions", R"({"prompt":"a","model":"gpt-9"})", 404, "invalid_request_error", "model_not_found", "model"},
      {"unknown model by id", "GET", "/v1/models/gpt-9", "", 404, "invalid_request_error", "model_not_found", "model"},
      {"too long", "POST", "/v1/completions", json{{"prompt", std::string(600, 'a')}}.dump(), 400, "invalid_request_error",
       "context_length_exceeded", nullptr},
  };
  for (const auto& row : rows) {
    const std::string reply = bed.Call(row.method, row.path, row.body);
    EXPECT_EQ(StatusOf(reply), row.status) << row.name << ": " << reply;
    EXPECT_NE(reply.find("Content-Type: application/json"), std::string::npos) << row.name;
    EXPECT_NE(reply.find("x-request-id: "), std::string::npos) << row.name;
    const json body = JsonOf(reply);
    ASSERT_TRUE(body.contains("error")) << row.name << ": " << reply;
    const json& error = body["error"];
    EXPECT_TRUE(error["message"].is_string() && !error["message"].get<std::string>().empty()) << row.name;
    EXPECT_EQ(error["type"], row.type) << row.name;
    EXPECT_TRUE(error.contains("param") && error.contains("code")) << row.name;
    if (row.code != nullptr) {
      EXPECT_EQ(error["code"], row.code) << row.name;
    }
    if (row.param != nullptr) {
      EXPECT_EQ(error["param"], row.param) << row.name;
    }
  }
  EXPECT_NE(bed.Get("/v1/chat/completions").find("Allow: POST"), std::string::npos);
  EXPECT_EQ(StatusOf(bed.Post("/v1/completions", kRequest)), 200);
}

TEST(DoorTest, HostileBodiesAreRefusedAndNothingBreaks) {
  GatewayBed bed;
  std::string deep, many;
  for (int i = 0; i < 100000; ++i) deep += "[";
  for (int i = 0; i < 20000; ++i) many += "{\"a\":";
  const std::string bodies[] = {
      deep, "{\"messages\":" + deep, many, std::string("\0\0\0", 3), "\xff\xfe\xfd", "{\"prompt\":\"\xc3\x28\"}", "{\"prompt\":\"\\ud800\"}",
      R"({"prompt":"a","max_tokens":1e999})", R"({"prompt":"a","max_tokens":-1})", R"({"prompt":"a","max_tokens":"many"})",
      R"({"prompt":{"a":1}})", R"({"prompt":[[[]]]})", R"({"prompt":[-5]})", R"({"prompt":[99999999999999999999]})", R"({"prompt":null})",
      R"({"prompt":"a","prompt":"b"})", R"({"prompt":"a","temperature":NaN})", R"({"prompt":"a","stream":"yes"})", "null", "1", "\"text\"", " ",
  };
  for (const std::string& body : bodies) {
    for (const char* path : {"/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/apply-template"}) {
      const std::string reply = bed.Call("POST", path, body);
      EXPECT_EQ(StatusOf(reply), 400) << path << " " << body.substr(0, 40) << ": " << reply;
      EXPECT_TRUE(JsonOf(reply).contains("error")) << reply;
    }
  }
  const std::string empty = bed.Call("POST", "/v1/completions", "", "Content-Length: 0\r\n");
  EXPECT_EQ(StatusOf(empty), 400) << empty;
  EXPECT_EQ(StatusOf(bed.Call("POST", "/v1/completions", "x", "Content-Type: multipart/form-data; boundary=x\r\n")), 415);
  EXPECT_EQ(StatusOf(bed.Post("/v1/completions", kRequest)), 200);
}

TEST(DoorTest, ACompressedBodyIsRefusedByThatName) {
  GatewayBed bed;
  for (const char* coding : {"gzip", "br", "zstd", "deflate", "GZIP", "gzip, identity", "compress"}) {
    const std::string reply = bed.Post("/v1/completions", kRequest, "Content-Encoding: " + std::string(coding) + "\r\n");
    EXPECT_EQ(StatusOf(reply), 415) << coding << ": " << reply;
    EXPECT_NE(JsonOf(reply)["error"]["message"].get<std::string>().find("must not be compressed"), std::string::npos) << reply;
  }
  for (const char* coding : {"identity", "Identity", "UTF-8"}) {
    EXPECT_EQ(StatusOf(bed.Post("/v1/completions", kRequest, "Content-Encoding: " + std::string(coding) + "\r\n")), 200) << coding;
  }
}

TEST(DoorTest, AKeyIsNeededEverywhereButOnProbes) {
  GatewayBed bed(WithKeys());
  for (const char* path : {"/health", "/v1/health", "/livez", "/readyz"}) EXPECT_EQ(StatusOf(bed.Get(path)), 200) << path;
  for (const char* path : {"/v1/models", "/v1/models/fake", "/metrics", "/props", "/cluster/v1/status", "/nothing", "/v1/embeddings"}) {
    EXPECT_EQ(StatusOf(bed.Get(path)), 401) << path;
  }
  const char* wrong[] = {"", "Authorization: Bearer\r\n", "Authorization: Bearer \r\n", "Authorization: Bearer sk-alic\r\n",
                         "Authorization: sk-alice\r\n", "x-api-key: alice\r\n", "Authorization: Basic sk-alice\r\n"};
  for (const char* header : wrong) {
    const std::string reply = bed.Post("/v1/completions", kRequest, header);
    EXPECT_EQ(StatusOf(reply), 401) << header;
    EXPECT_EQ(JsonOf(reply)["error"]["type"], "authentication_error");
    EXPECT_EQ(reply.find("sk-alic"), std::string::npos);
  }
  for (const char* header : {"Authorization: Bearer sk-alice\r\n", "authorization: bearer sk-bob\r\n", "X-Api-Key: sk-alice\r\n"}) {
    EXPECT_EQ(StatusOf(bed.Post("/v1/completions", kRequest, header)), 200) << header;
  }
  EXPECT_EQ(StatusOf(bed.Get("/nothing", "x-api-key: sk-bob\r\n")), 404);
  EXPECT_EQ(StatusOf(bed.Get("/metrics", "x-api-key: sk-bob\r\n")), 200);
}

TEST(DoorTest, NoOwnerProfitsFromAnothersPrefix) {
  GatewayBed bed(WithKeys());
  auto cached = [&](const char* key) {
    return JsonOf(bed.Post("/v1/completions", kRequest, std::string("x-api-key: ") + key + "\r\n"))["usage"]["prompt_tokens_details"]["cached_tokens"]
        .get<int>();
  };
  EXPECT_EQ(cached("sk-alice"), 0);
  EXPECT_EQ(cached("sk-bob"), 0);
  EXPECT_GT(cached("sk-alice"), 40);
  EXPECT_GT(cached("sk-alice"), 40);
}

TEST(DoorTest, BrowsersGetTheirHeaders) {
  GatewayBed bed(WithKeys());
  const std::string origin = "Origin: https://app.example\r\n";
  const std::string preflight = bed.Call("OPTIONS", "/v1/chat/completions", "",
                                         origin + "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization, x-stainless-os\r\n");
  EXPECT_EQ(StatusOf(preflight) / 100, 2) << preflight;
  EXPECT_NE(preflight.find("Access-Control-Allow-Origin: https://app.example"), std::string::npos);
  const size_t at = preflight.find("Access-Control-Allow-Headers: ");
  ASSERT_NE(at, std::string::npos);
  const std::string allowed = preflight.substr(at, preflight.find("\r\n", at) - at);
  for (const char* name : {"Authorization", "x-api-key", "Content-Type", "x-stainless-os"}) EXPECT_NE(allowed.find(name), std::string::npos) << name;

  const std::string denied = bed.Get("/v1/models", origin);
  EXPECT_EQ(StatusOf(denied), 401);
  EXPECT_NE(denied.find("Access-Control-Allow-Origin: https://app.example"), std::string::npos);

  json request = kRequest;
  request["stream"] = true;
  const std::string stream = bed.Post("/v1/completions", request, origin + "x-api-key: sk-alice\r\n");
  EXPECT_EQ(StatusOf(stream), 200);
  EXPECT_NE(stream.find("Access-Control-Allow-Origin: https://app.example"), std::string::npos);
  EXPECT_EQ(bed.Get("/livez").find("Access-Control"), std::string::npos);
}

TEST(DoorTest, WithoutKeysOnlyPagesOfThisMachineRead) {
  GatewayBed bed;
  EXPECT_EQ(bed.Get("/v1/models", "Origin: https://evil.example\r\n").find("Access-Control-Allow-Origin"), std::string::npos);
  EXPECT_EQ(bed.Get("/v1/models", "Origin: http://localhost.evil.example\r\n").find("Access-Control-Allow-Origin"), std::string::npos);
  EXPECT_NE(bed.Get("/v1/models", "Origin: http://localhost:3000\r\n").find("Access-Control-Allow-Origin: http://localhost:3000"), std::string::npos);
}

TEST(DoorTest, ARequestIdIsEchoedOrFresh) {
  GatewayBed bed;
  EXPECT_NE(bed.Get("/livez", "x-request-id: my-id.1\r\n").find("x-request-id: my-id.1\r\n"), std::string::npos);
  EXPECT_NE(bed.Get("/livez").find("x-request-id: req-"), std::string::npos);
  EXPECT_NE(bed.Get("/livez", "x-request-id: has blanks and \x01\r\n").find("x-request-id: req-"), std::string::npos);
}

TEST(DoorTest, RefusesToStartWhereItShouldNot) {
  SystemClock clock;
  Route route({}, clock);
  auto text = CreateFakeTextModel({});
  auto start = [&](GatewayOptions options) { return Gateway::Start(options, route, *text, {}, clock).status(); };
  GatewayOptions options;
  options.listen = "0.0.0.0:0";
  EXPECT_EQ(start(options).code(), StatusCode::kRefused);
  EXPECT_EQ(Gateway::CheckOptions(options).code(), StatusCode::kRefused);
  options.insecure = true;
  EXPECT_TRUE(start(options).ok());
  options.insecure = false;
  options.api_key_file = KeyFile("a:b\n");
  EXPECT_TRUE(start(options).ok());
  options.api_key_file = "/no/such/file";
  EXPECT_EQ(start(options).code(), StatusCode::kBadConfiguration);
  options = {};
  options.listen = "127.0.0.1:0";
  auto first = Gateway::Start(options, route, *text, {}, clock);
  ASSERT_TRUE(first.ok());
  options.listen = (*first)->address();
  EXPECT_EQ(start(options).code(), StatusCode::kBadConfiguration);
  EXPECT_NE(start(options).message().find(options.listen), std::string::npos);
  EXPECT_EQ(Gateway::CheckOptions(options).code(), StatusCode::kBadConfiguration);
  options.listen = "127.0.0.1:0";
  options.tls_certificate_path = "/no/such/certificate";
  EXPECT_EQ(start(options).code(), StatusCode::kBadConfiguration);
  options.tls_key_path = "/no/such/key";
  EXPECT_NE(start(options).message().find("/no/such/certificate"), std::string::npos);
}

TEST(DoorTest, ModelsPropsAndTheTokenizer) {
  GatewayBed bed;
  const json models = JsonOf(bed.Get("/v1/models"));
  EXPECT_EQ(models["object"], "list");
  EXPECT_EQ(models["data"][0]["id"], "fake");
  EXPECT_EQ(models["data"][0]["object"], "model");
  EXPECT_EQ(JsonOf(bed.Get("/v1/models/fake"))["id"], "fake");
  const json props = JsonOf(bed.Get("/props"));
  EXPECT_EQ(props["total_slots"], 8);
  EXPECT_EQ(props["default_generation_settings"]["n_ctx"], 512);
  EXPECT_EQ(JsonOf(bed.Post("/tokenize", {{"content", "ab"}}))["tokens"], json({97, 98}));
  EXPECT_EQ(JsonOf(bed.Post("/detokenize", {{"tokens", {97, 98}}}))["content"], "ab");
  EXPECT_EQ(JsonOf(bed.Post("/apply-template", {{"messages", {{{"role", "user"}, {"content", "x"}}}}}))["prompt"], "user:x\nassistant:");
}

TEST(DoorTest, WithoutATokenizerOnlyTokenIdsWork) {
  GatewayBed bed({.has_tokenizer = false});
  EXPECT_EQ(StatusOf(bed.Post("/tokenize", {{"content", "ab"}})), 501);
  EXPECT_EQ(StatusOf(bed.Post("/v1/completions", {{"prompt", {1, 2, 3}}, {"max_tokens", 2}})), 200);
}

}  // namespace
}  // namespace meshnet::gateway
