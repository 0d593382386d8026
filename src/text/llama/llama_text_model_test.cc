#include "text/llama/llama_text_model.h"

#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "chat.h"
#include "sampling.h"
#include "server-common.h"
#include "server-schema.h"
#include "text/llama/llama_vocabulary.h"
#include "text/llama/text_bed.h"

namespace meshnet::text {
namespace {

using nlohmann::ordered_json;

const std::string kHi = R"("messages":[{"role":"user","content":"hi"}])";
const std::string kTool = R"({"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"a":{"type":"string"}},"required":["a"]}}})";

std::string PromptText(const TextModel& model, const std::string& body) {
  auto rendered = model.ApplyTemplate(body);
  if (auto* error = std::get_if<ApiError>(&rendered)) return "error: " + error->message;
  return std::get<ordered_json>(rendered)["prompt"].get<std::string>();
}

std::string Shown(const TextModel& model, const std::vector<Token>& tokens) {
  auto shown = model.Detokenize(ordered_json{{"tokens", tokens}}.dump());
  return std::get<ordered_json>(shown)["content"].get<std::string>();
}

TEST(LlamaTextModelTest, RendersWithTheTemplate) {
  struct Case {
    const char* vocabulary;
    const char* chat_template;
    std::string prompt;
  };
  const Case cases[] = {
      {"qwen2", kChatMl, "<|im_start|>system\nbe kind<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"},
      {"qwen2", kStrictToolTemplate, "<|im_start|>system\nbe kind<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"},
      {"llama-bpe", kLlama3, "<|start_header_id|>system<|end_header_id|>\n\nbe kind<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>"
                             "<|start_header_id|>assistant<|end_header_id|>\n\n"},
  };
  for (const Case& c : cases) {
    const TextModel& model = Model(c.vocabulary, c.chat_template);
    // The role developer is the system's newer name.
    for (const char* role : {"system", "developer"}) {
      const std::string body = std::string(R"({"messages":[{"role":")") + role + R"(","content":"be kind"},{"role":"user","content":"hi"}]})";
      EXPECT_EQ(PromptText(model, body), c.prompt);
      auto request = MustParse(model, ApiKind::kChat, body);
      const std::string begin = std::string(c.vocabulary) == "llama-bpe" ? "<|begin_of_text|>" : "";
      EXPECT_EQ(Shown(model, request->choices[0].prompt), begin + c.prompt) << "one beginning of text, not two";
    }
  }
}

TEST(LlamaTextModelTest, SpellingsOfAnEmptyContentGiveOnePrompt) {
  const TextModel& model = Model("qwen2", kStrictToolTemplate);
  const std::string call = R"("tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\": \"b\"}"}}])";
  std::set<std::string> prompts;
  for (const std::string content : {"\"content\":null,", "", "\"content\":\"\",", "\"content\":[{\"type\":\"text\"}],", "\"content\":[],"}) {
    prompts.insert(PromptText(model, R"({"messages":[{"role":"user","content":"hi"},{"role":"assistant",)" + content + call +
                                         R"(},{"role":"tool","tool_call_id":"c1","content":"ok"}],"tools":[)" + kTool + "]}"));
  }
  ASSERT_EQ(prompts.size(), 1u);
  EXPECT_NE(prompts.begin()->find("{\"name\": \"f\", \"arguments\": {\"a\": \"b\"}}"), std::string::npos) << *prompts.begin();
  // The last message as parts goes on where it stopped.
  EXPECT_EQ(PromptText(model, R"({"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":[{"type":"text","text":"Well,"}]}]})"),
            PromptText(model, R"({"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"Well,"}]})"));
}

TEST(LlamaTextModelTest, StrictTemplatesNameTheMessage) {
  const TextModel& model = Model("qwen2", kStrictToolTemplate);
  const ApiError late = MustRefuse(model, ApiKind::kChat,
                                   R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"system","content":"c"},{"role":"user","content":"d"}]})");
  EXPECT_EQ(late.status, 400);
  EXPECT_EQ(late.param, "messages[2]");
  EXPECT_NE(late.message.find("role system"), std::string::npos);
  EXPECT_NE(late.message.find("System message must be at the beginning"), std::string::npos);
  const ApiError twice = MustRefuse(model, ApiKind::kChat, R"({"messages":[{"role":"user","content":"a"},{"role":"user","content":"b"}]})");
  EXPECT_EQ(twice.param, "messages[1]");
  EXPECT_NE(twice.message.find("must alternate"), std::string::npos);
  for (const char* body : {R"({"messages":[{"role":"user","content":"a"},{"role":"user","content":"b"}]})"}) {
    auto rendered = model.ApplyTemplate(body);
    ASSERT_TRUE(std::holds_alternative<ApiError>(rendered));
    EXPECT_EQ(std::get<ApiError>(rendered).status, 400);
  }
}

// Our mapping is llama-server's: the same body through its own functions gives the same sampling parameters.
TEST(LlamaTextModelTest, SamplesLikeLlamaServer) {
  const TextModel& model = Model("qwen2", kChatMl);
  const std::string fields =
      R"("temperature":0.3,"dynatemp_range":0.1,"dynatemp_exponent":2,"top_k":7,"top_p":0.5,"min_p":0.01,"top_n_sigma":1.5,"typical_p":0.9,"xtc_probability":0.2,)"
      R"("xtc_threshold":0.3,"min_keep":2,"repeat_last_n":33,"repeat_penalty":1.2,"presence_penalty":0.4,"frequency_penalty":-0.5,"dry_multiplier":0.8,"dry_base":1.9,)"
      R"("dry_allowed_length":3,"dry_penalty_last_n":44,"dry_sequence_breakers":["\n","x"],"mirostat":1,"mirostat_tau":4,"mirostat_eta":0.2,"adaptive_target":0.5,)"
      R"("adaptive_decay":0.8,"logit_bias":[[5,1.5],[6,false]],"samplers":["top_k","temperature"],"grammar":"root ::= \"a\"","seed":9)";
  auto request = MustParse(model, ApiKind::kChat, "{" + kHi + "," + fields + "}");
  const SamplingParams& ours = request->choices[0].sampling;

  auto loaded = LlamaVocabulary::Load(std::string(MESHNET_LLAMA_CPP_DIR) + "/models/ggml-vocab-qwen2.gguf");
  ASSERT_TRUE(loaded.ok());
  common_params defaults;
  const task_params theirs = server_schema::eval_llama_cmpl_schema((*loaded)->vocab(), defaults, {}, common_json::parse("{" + fields + "}"));
  const common_params_sampling& s = theirs.sampling;
  EXPECT_EQ(ours.temperature, s.temp);
  EXPECT_EQ(ours.dynatemp_range, s.dynatemp_range);
  EXPECT_EQ(ours.dynatemp_exponent, s.dynatemp_exponent);
  EXPECT_EQ(ours.top_k, s.top_k);
  EXPECT_EQ(ours.top_p, s.top_p);
  EXPECT_EQ(ours.min_p, s.min_p);
  EXPECT_EQ(ours.top_n_sigma, s.top_n_sigma);
  EXPECT_EQ(ours.typical_p, s.typ_p);
  EXPECT_EQ(ours.xtc_probability, s.xtc_probability);
  EXPECT_EQ(ours.xtc_threshold, s.xtc_threshold);
  EXPECT_EQ(ours.min_keep, s.min_keep);
  EXPECT_EQ(ours.repeat_last_n, s.penalty_last_n);
  EXPECT_EQ(ours.repeat_penalty, s.penalty_repeat);
  EXPECT_EQ(ours.presence_penalty, s.penalty_present);
  EXPECT_EQ(ours.frequency_penalty, s.penalty_freq);
  EXPECT_EQ(ours.dry_multiplier, s.dry_multiplier);
  EXPECT_EQ(ours.dry_base, s.dry_base);
  EXPECT_EQ(ours.dry_allowed_length, s.dry_allowed_length);
  EXPECT_EQ(ours.dry_penalty_last_n, s.dry_penalty_last_n);
  EXPECT_EQ(ours.dry_sequence_breakers, s.dry_sequence_breakers);
  EXPECT_EQ(ours.mirostat, s.mirostat);
  EXPECT_EQ(ours.mirostat_tau, s.mirostat_tau);
  EXPECT_EQ(ours.mirostat_eta, s.mirostat_eta);
  EXPECT_EQ(ours.adaptive_target, s.adaptive_target);
  EXPECT_EQ(ours.adaptive_decay, s.adaptive_decay);
  EXPECT_EQ(ours.samplers, "kt");
  EXPECT_EQ(ours.grammar, s.grammar.grammar);
  EXPECT_EQ(ours.grammar_type, static_cast<int32_t>(s.grammar.type));
  EXPECT_EQ(ours.seed, 9u);
  ASSERT_EQ(ours.logit_bias.size(), 2u);
  EXPECT_EQ(ours.logit_bias[0], (LogitBias{5, 1.5f}));
  EXPECT_EQ(ours.logit_bias[1], (LogitBias{6, -INFINITY}));

  // Without any field: the defaults of both, and no bias.
  const SamplingParams plain = MustParse(model, ApiKind::kChat, "{" + kHi + "}")->choices[0].sampling;
  const common_params_sampling untouched;
  EXPECT_EQ(plain.temperature, untouched.temp);
  EXPECT_EQ(plain.top_k, untouched.top_k);
  EXPECT_EQ(plain.samplers, "");
  EXPECT_TRUE(plain.logit_bias.empty());
  const SamplingParams endless = MustParse(model, ApiKind::kChat, "{" + kHi + R"(,"ignore_eos":true})")->choices[0].sampling;
  EXPECT_TRUE(endless.ignore_eos);
  EXPECT_FALSE(endless.logit_bias.empty()) << "as llama-server bans the ends";
}

TEST(LlamaTextModelTest, ChoicesAndSeeds) {
  const TextModel& model = Model("qwen2", kChatMl);
  auto request = MustParse(model, ApiKind::kCompletion, R"({"prompt":["a","b"],"n":3,"seed":7,"max_tokens":9})");
  ASSERT_EQ(request->choices.size(), 6u);
  for (uint32_t i = 0; i < 6; ++i) {
    EXPECT_EQ(request->choices[i].index, i);
    EXPECT_EQ(request->choices[i].prompt_index, i / 3);
    EXPECT_EQ(request->choices[i].sampling.seed, 7 + i % 3);
    EXPECT_EQ(request->choices[i].prompt, Tokens(model, i < 3 ? "a" : "b"));
    EXPECT_EQ(request->choices[i].sampling.prompt_len, PastLen(1));
  }
  EXPECT_EQ(request->tokens_max, 9u);
  std::set<uint32_t> seeds;
  for (int i = 0; i < 4; ++i) seeds.insert(MustParse(model, ApiKind::kChat, "{" + kHi + R"(,"seed":-1})")->choices[0].sampling.seed);
  EXPECT_GT(seeds.size(), 1u) << "random, once for each request";
  auto last = MustParse(model, ApiKind::kChat, "{" + kHi + R"(,"seed":4294967294,"n":3})");
  EXPECT_EQ(last->choices[1].sampling.seed, 0u) << "2^32-1 means random to llama.cpp";
  auto keyed = MustParse(model, ApiKind::kChat, "{" + kHi + R"(,"prompt_cache_key":"k"})");
  EXPECT_EQ(keyed->prompt_cache_key, "k");
  const auto fresh = [&] { return MustParse(model, ApiKind::kChat, "{" + kHi + R"(,"cache_prompt":false})")->prompt_cache_key; };
  EXPECT_NE(fresh(), fresh()) << "a key of its own shares no session";
}

TEST(LlamaTextModelTest, PromptsThatDoNotFit) {
  const TextModel& model = Model("qwen2", kChatMl);
  auto tokens = Tokens(model, "a b c d e f g h");
  ASSERT_EQ(tokens.size(), 8u);
  const std::string body = R"({"prompt":"a b c d e f g h"})";
  const ApiError error = MustRefuse(model, ApiKind::kCompletion, body, 8);
  EXPECT_EQ(error.status, 400);
  EXPECT_EQ(error.code, "context_length_exceeded");
  EXPECT_EQ(error.ToJson()["error"]["n_prompt_tokens"], 8);
  EXPECT_EQ(error.ToJson()["error"]["n_ctx"], 8);
  EXPECT_NE(MustParse(model, ApiKind::kCompletion, body, 9), nullptr);
  // Far too long: seen without tokenizing.
  const ApiError large = MustRefuse(model, ApiKind::kCompletion, "{\"prompt\":\"" + std::string(20u << 20, 'x') + "\"}", 4096);
  EXPECT_EQ(large.code, "context_length_exceeded");
}

TEST(LlamaTextModelTest, ConstraintsReachTheSampler) {
  const TextModel& model = Model("qwen2", kStrictToolTemplate);
  const auto sampling = [&](const std::string& fields) { return MustParse(model, ApiKind::kChat, "{" + kHi + "," + fields + "}")->choices[0].sampling; };
  const SamplingParams lazy = sampling("\"tools\":[" + kTool + "]");
  EXPECT_TRUE(lazy.grammar_lazy);
  ASSERT_EQ(lazy.grammar_triggers.size(), 1u);
  EXPECT_NE(lazy.grammar.find("\"f\""), std::string::npos) << lazy.grammar;
  const SamplingParams required = sampling("\"tools\":[" + kTool + R"(],"tool_choice":"required")");
  EXPECT_FALSE(required.grammar_lazy);
  EXPECT_EQ(required.generation_prompt, "<|im_start|>assistant\n");
  const std::string other = R"({"type":"function","function":{"name":"other"}})";
  const SamplingParams named = sampling("\"tools\":[" + kTool + "," + other + R"(],"tool_choice":{"type":"function","function":{"name":"other"}})");
  EXPECT_EQ(named.grammar.find("\"f\""), std::string::npos);
  EXPECT_NE(named.grammar.find("other"), std::string::npos);
  EXPECT_TRUE(sampling("\"tools\":[" + kTool + R"(],"tool_choice":"none")").grammar.empty());
  EXPECT_NE(sampling(R"("response_format":{"type":"json_object"})").grammar, "");
  EXPECT_NE(sampling(R"("json_schema":{"const":"x"})").grammar.find("\\\"x\\\""), std::string::npos);
  EXPECT_EQ(sampling(R"("response_format":{"type":"text"})").grammar, "");
  const SamplingParams completion = MustParse(model, ApiKind::kCompletion, R"({"prompt":"x","response_format":{"type":"json_schema","json_schema":{"schema":{"const":7}}}})")->choices[0].sampling;
  EXPECT_NE(completion.grammar.find("\"7\""), std::string::npos);
}

// Stock llama-server answers 200 with free text to each of these (L#19051).
TEST(LlamaTextModelTest, NeverFailsOpen) {
  struct Case {
    const char* chat_template;
    std::string fields;
    std::string param;
  };
  const std::string tool_strict = R"({"type":"function","function":{"name":"f","strict":true,"parameters":{"type":"object","properties":{"a":{"type":"string","pattern":"^\\bx$"}}}}})";
  const Case cases[] = {
      {kChatMl, R"("grammar":"root ::= (((")", "grammar"},
      {kChatMl, R"("grammar":"root ::= root \"a\" | \"b\"")", "grammar"},
      {kChatMl, R"("grammar":"root ::= <not-a-token>")", "grammar"},
      {kChatMl, R"("grammar":"root ::= \"a\"{5,3}")", "grammar"},
      {kChatMl, "\"grammar\":\"root ::= " + std::string(60000, '(') + "\"", "grammar"},
      {kChatMl, R"("response_format":{"type":"json_schema","json_schema":{"schema":{"type":"string","pattern":"^a\\b$"}}})", "response_format.json_schema.schema.pattern"},
      {kChatMl, R"("response_format":{"type":"json_schema","json_schema":{"schema":{"type":"string","frobnicate":true}}})", "response_format.json_schema.schema.frobnicate"},
      {kChatMl, R"("json_schema":{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/a"}}})", "json_schema.$defs/a.$ref"},
      {kChatMl, "\"tools\":[" + kTool + "]", "tools"},
      {kChatMl, "\"tools\":[" + kTool + R"(],"tool_choice":"required")", "tools"},
      {kChatMl, "\"tools\":[" + kTool + R"(],"tool_choice":{"type":"function","function":{"name":"f"}})", "tools"},
      {kStrictToolTemplate, "\"tools\":[" + kTool + R"(],"response_format":{"type":"json_object"})", "response_format"},
      {kStrictToolTemplate, "\"tools\":[" + tool_strict + "]", "tools[0].function.parameters.properties.a.pattern"},
  };
  for (const Case& c : cases) {
    const ApiError error = MustRefuse(Model("qwen2", c.chat_template), ApiKind::kChat, "{" + kHi + "," + c.fields + "}");
    EXPECT_EQ(error.status, 400) << c.fields;
    EXPECT_EQ(error.param, c.param) << error.message;
  }
  // The same pattern where llama.cpp drops it, as something it can hold to.
  const SamplingParams honoured = MustParse(Model("qwen2", kChatMl), ApiKind::kChat,
                                            "{" + kHi + R"(,"response_format":{"type":"json_schema","json_schema":{"strict":true,"schema":{"type":"string","pattern":"^hello\\!$"}}}})")
                                      ->choices[0].sampling;
  EXPECT_NE(honoured.grammar.find("[\\x21]"), std::string::npos) << honoured.grammar;
  // A continued answer that holds an end of generation would make llama.cpp abort once a grammar takes it.
  const ApiError ended = MustRefuse(Model("qwen2", kChatMl), ApiKind::kChat,
                                    R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b<|im_end|>"}],"response_format":{"type":"json_object"}})");
  EXPECT_EQ(ended.status, 400);
  // The last worker tokenizes that beginning on a usual stack.
  const ApiError run = MustRefuse(Model("deepseek-llm", kChatMl), ApiKind::kChat,
                                  R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":")" + std::string(30000, 'a') + R"("}]})", 100000);
  EXPECT_EQ(run.param, "messages");
}

TEST(LlamaTextModelTest, TokenizesAndDetokenizes) {
  const TextModel& model = Model("llama-bpe", kLlama3);
  const auto tokenize = [&](const std::string& body) {
    auto result = model.Tokenize(body);
    return std::holds_alternative<ApiError>(result) ? std::get<ApiError>(result).param : std::get<ordered_json>(result)["tokens"].dump();
  };
  EXPECT_EQ(tokenize(R"({"content":"hello"})"), "[15339]");
  EXPECT_EQ(tokenize(R"({"content":"hello","add_special":true})"), "[128000,15339]");
  EXPECT_EQ(tokenize(R"({"content":"<|eot_id|>"})"), "[128009]");
  EXPECT_NE(tokenize(R"({"content":"<|eot_id|>","parse_special":false})"), "[128009]");
  EXPECT_EQ(tokenize(R"({"content":["hello",7]})"), "[15339,7]");
  EXPECT_EQ(tokenize(R"({"content":"hello","with_pieces":true})"), R"([{"id":15339,"piece":"hello"}])");
  EXPECT_EQ(tokenize(R"({"content":""})"), "[]");
  EXPECT_EQ(tokenize(R"({})"), "[]");
  EXPECT_EQ(tokenize(R"({"content":7.5})"), "content");
  EXPECT_EQ(tokenize(R"({"content":[-1]})"), "content");
  EXPECT_EQ(tokenize(R"({"content":"a","x":1})"), "x");
  const auto split = model.Tokenize(R"({"content":"🧬","with_pieces":true})");
  EXPECT_TRUE(std::get<ordered_json>(split)["tokens"][0]["piece"].is_array()) << "bytes where a token is no text of its own";

  EXPECT_EQ(Shown(model, {128000, 15339, 128009}), "<|begin_of_text|>hello<|eot_id|>");
  for (const char* body : {R"({"tokens":[-1]})", R"({"tokens":[99999999]})", R"({"tokens":["a"]})", R"({"tokens":7})", "[]", "{"}) {
    auto result = model.Detokenize(body);
    ASSERT_TRUE(std::holds_alternative<ApiError>(result)) << body;
    EXPECT_EQ(std::get<ApiError>(result).status, 400);
  }
  EXPECT_EQ(model.TokenizeText("hello"), (std::vector<Token>{128000, 15339}));
  EXPECT_EQ(model.Piece(15339), "hello");
  EXPECT_EQ(model.Piece(128009), "");
  EXPECT_EQ(model.Piece(-5), "");
  EXPECT_EQ(model.Piece(99999999), "");
  EXPECT_TRUE(model.IsEndOfGeneration(128009));
  EXPECT_FALSE(model.IsEndOfGeneration(-1));
}

TEST(LlamaTextModelTest, Props) {
  const TextModel& model = Model("llama-bpe", kLlama3);
  const ordered_json props = model.Props();
  EXPECT_EQ(props["chat_template"], kLlama3);
  EXPECT_EQ(props["bos_token"], "<|begin_of_text|>");
  EXPECT_EQ(props["default_generation_settings"]["params"]["top_k"], 40);
  EXPECT_TRUE(props["chat_template_caps"].is_object());
  EXPECT_EQ(props["modalities"]["vision"], false);
  EXPECT_GT(model.vocabulary_size(), 128000u);
  EXPECT_EQ(model.training_context(), 8192u);
}

TEST(LlamaTextModelTest, ParsesOnManyThreads) {
  const TextModel& model = Model("qwen2", kStrictToolTemplate);
  const std::string body = "{" + kHi + ",\"tools\":[" + kTool + R"(],"seed":1})";
  const auto expected = MustParse(model, ApiKind::kChat, body);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 5; ++round) {
        auto request = MustParse(model, ApiKind::kChat, body);
        EXPECT_EQ(request->choices[0].prompt, expected->choices[0].prompt);
        EXPECT_EQ(request->choices[0].sampling, expected->choices[0].sampling);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(LlamaTextModelTest, RefusesBadFilesAndTemplates) {
  const auto message = [](const TextModelOptions& options) {
    auto created = CreateLlamaTextModel(options);
    return created.ok() ? std::string("ok") : std::to_string(created.status().exit_code()) + " " + created.status().message();
  };
  const std::string good = std::string(MESHNET_LLAMA_CPP_DIR) + "/models/ggml-vocab-gpt-2.gguf";
  TextModelOptions missing;
  missing.vocab_path = "/nonexistent/file.gguf";
  EXPECT_TRUE(message(missing).starts_with("5 ")) << message(missing);
  TextModelOptions broken;
  broken.vocab_path = good;
  broken.chat_template = "{% for x in %}";
  EXPECT_TRUE(message(broken).starts_with("3 ")) << message(broken);

  const std::filesystem::path cut = std::filesystem::path(testing::TempDir()) / "cut-vocabulary.gguf";
  {
    std::ifstream in(good, std::ios::binary);
    std::string head(200000, '\0');
    in.read(head.data(), static_cast<std::streamsize>(head.size()));
    std::ofstream(cut, std::ios::binary) << head;
  }
  TextModelOptions truncated;
  truncated.vocab_path = cut.string();
  EXPECT_TRUE(message(truncated).starts_with("5 ")) << message(truncated);
  std::filesystem::remove(cut);
}

}  // namespace
}  // namespace meshnet::text
