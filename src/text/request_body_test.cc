#include "text/request_body.h"

#include <gtest/gtest.h>

namespace meshnet::text {
namespace {

using nlohmann::ordered_json;

const RequestLimits kLimits{.body_bytes_max = 1u << 20, .context_tokens = 4096, .vocabulary_size = 1000};
const std::string kMessages = R"("messages":[{"role":"user","content":"hi"}])";
const std::string kTool = R"({"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"a":{"type":"string"}}}}})";

std::variant<ChatBody, ApiError> Chat(const std::string& fields) { return ReadChatBody("{" + kMessages + (fields.empty() ? "" : "," + fields) + "}", kLimits); }
std::variant<CompletionBody, ApiError> Completion(const std::string& fields) { return ReadCompletionBody("{" + fields + "}", kLimits); }

TEST(RequestBodyTest, ReadsEveryHonouredField) {
  auto read = Chat(R"("model":"m","stream":true,"stream_options":{"include_usage":true,"include_obfuscation":false},"max_completion_tokens":7,"n":3,"seed":5,
    "stop":["a","b"],"logprobs":true,"top_logprobs":4,"prompt_cache_key":"k","cache_prompt":false,"return_tokens":true,
    "temperature":0.5,"top_p":0.4,"top_k":-1,"min_p":0.3,"repeat_penalty":1.1,"repeat_last_n":100000,"presence_penalty":-2,"frequency_penalty":2,
    "logit_bias":{"7":-100,"hello":false},"ignore_eos":true,"samplers":["top_k","temp"],"dry_sequence_breakers":["x"],"mirostat":2,
    "reasoning_effort":"low","chat_template_kwargs":{"enable_thinking":false},"reasoning_format":"none","thinking_budget_tokens":9,
    "parallel_tool_calls":true,"user":"u","metadata":{"a":"b"},"store":false,"service_tier":"auto")");
  ASSERT_TRUE(std::holds_alternative<ChatBody>(read)) << std::get<ApiError>(read).message;
  const ChatBody& chat = std::get<ChatBody>(read);
  EXPECT_EQ(chat.answer.model, "m");
  EXPECT_TRUE(chat.answer.stream);
  EXPECT_TRUE(chat.answer.include_usage);
  EXPECT_EQ(chat.answer.tokens_max, 7u);
  EXPECT_EQ(chat.answer.count, 3u);
  EXPECT_EQ(chat.answer.seed, 5u);
  EXPECT_EQ(chat.answer.stops, (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(chat.answer.logprobs_wanted);
  EXPECT_EQ(chat.answer.logprobs, 4u);
  EXPECT_EQ(chat.answer.prompt_cache_key, "k");
  EXPECT_FALSE(chat.answer.reuse);
  EXPECT_TRUE(chat.answer.return_tokens);
  EXPECT_EQ(chat.sampling["temperature"], 0.5);
  EXPECT_EQ(chat.sampling["top_k"], 0);
  EXPECT_EQ(chat.sampling["repeat_last_n"], 4096) << "llama.cpp allocates the window";
  EXPECT_EQ(chat.sampling["logit_bias"].dump(), R"([[7,-100],["hello",false]])");
  EXPECT_EQ(chat.sampling["samplers"].dump(), R"(["top_k","temp"])");
  EXPECT_EQ(chat.templating["chat_template_kwargs"]["enable_thinking"], false);
  EXPECT_EQ(chat.templating["thinking_budget_tokens"], 9);
  EXPECT_EQ(chat.constraint.parallel_tool_calls, true);
}

TEST(RequestBodyTest, DefaultsAndNulls) {
  auto read = Chat(R"("max_tokens":null,"temperature":null,"stop":null,"n":null,"seed":null,"tools":null,"response_format":null,"logit_bias":null,"functions":null,"echo":null)");
  ASSERT_TRUE(std::holds_alternative<ChatBody>(read)) << std::get<ApiError>(read).message;
  const AnswerFields& answer = std::get<ChatBody>(read).answer;
  EXPECT_EQ(answer.tokens_max, 0u);
  EXPECT_EQ(answer.count, 1u);
  EXPECT_FALSE(answer.seed.has_value());
  EXPECT_TRUE(std::get<ChatBody>(read).sampling.empty());
  const auto tokens_max = [](const std::string& fields) { return std::get<ChatBody>(Chat(fields)).answer.tokens_max; };
  EXPECT_EQ(tokens_max(R"("max_tokens":-1)"), 0u);
  EXPECT_EQ(tokens_max(R"("max_tokens":3,"max_completion_tokens":4,"n_predict":5)"), 5u);
  EXPECT_EQ(tokens_max(R"("max_tokens":5.0)"), 5u);
  const auto seed = [](const std::string& fields) { return std::get<ChatBody>(Chat(fields)).answer.seed; };
  EXPECT_FALSE(seed(R"("seed":-1)").has_value());
  EXPECT_EQ(seed(R"("seed":0)"), 0u);
  EXPECT_EQ(seed(R"("seed":9007199254740991)"), seed(R"("seed":9007199254740991)"));
  EXPECT_FALSE(seed(R"("seed":4294967295)").has_value()) << "llama.cpp's own word for random";
}

TEST(RequestBodyTest, ReadsPrompts) {
  const auto pieces = [](const std::string& prompt) {
    auto read = Completion("\"prompt\":" + prompt);
    return std::holds_alternative<CompletionBody>(read) ? std::get<CompletionBody>(read).prompts : std::vector<std::vector<PromptPiece>>();
  };
  EXPECT_EQ(pieces(R"("a")"), (std::vector<std::vector<PromptPiece>>{{"a"}}));
  EXPECT_EQ(pieces(R"([1,2])"), (std::vector<std::vector<PromptPiece>>{{1, 2}}));
  EXPECT_EQ(pieces(R"([1,"a",2])"), (std::vector<std::vector<PromptPiece>>{{1, "a", 2}}));
  EXPECT_EQ(pieces(R"(["a","b"])"), (std::vector<std::vector<PromptPiece>>{{"a"}, {"b"}}));
  EXPECT_EQ(pieces(R"([[1,2],"b",["c",3]])"), (std::vector<std::vector<PromptPiece>>{{1, 2}, {"b"}, {"c", 3}}));
}

TEST(RequestBodyTest, ChoosesTools) {
  const std::string other = R"({"type":"function","function":{"name":"g","description":"d"}})";
  const auto constraint = [&](const std::string& choice) {
    auto read = Chat("\"tools\":[" + kTool + "," + other + "]" + (choice.empty() ? "" : ",\"tool_choice\":" + choice));
    EXPECT_TRUE(std::holds_alternative<ChatBody>(read)) << choice;
    return std::get<ChatBody>(read).constraint;
  };
  EXPECT_EQ(constraint("").tool_choice, ToolChoice::kAuto);
  EXPECT_EQ(constraint("\"none\"").tool_choice, ToolChoice::kNone);
  EXPECT_EQ(constraint("\"required\"").tools.size(), 2u);
  const Constraint named = constraint(R"({"type":"function","function":{"name":"g"}})");
  EXPECT_EQ(named.tool_choice, ToolChoice::kRequired);
  ASSERT_EQ(named.tools.size(), 1u);
  EXPECT_EQ(named.tools[0]["function"]["name"], "g");
}

struct Refused {
  std::string fields;
  std::string param;
};

TEST(RequestBodyTest, NamesTheFieldThatIsWrong) {
  const Refused cases[] = {
      // Wrong types, which llama-server takes for absent.
      {R"("stream":"yes")", "stream"}, {R"("stream":1)", "stream"}, {R"("max_tokens":"5")", "max_tokens"}, {R"("max_tokens":1.5)", "max_tokens"},
      {R"("temperature":"hot")", "temperature"}, {R"("temperature":true)", "temperature"}, {R"("top_k":2.5)", "top_k"}, {R"("stop":7)", "stop"}, {R"("stop":[7])", "stop"},
      {R"("seed":"x")", "seed"}, {R"("model":7)", "model"}, {R"("logprobs":3)", "logprobs"}, {R"("tools":{})", "tools"}, {R"("tool_choice":7)", "tool_choice"},
      {R"("response_format":"json")", "response_format"}, {R"("grammar":7)", "grammar"}, {R"("json_schema":"x")", "json_schema"}, {R"("logit_bias":"x")", "logit_bias"},
      {R"("stream_options":true)", "stream_options"}, {R"("stream_options":{"include_usage":1})", "stream_options.include_usage"},
      {R"("chat_template_kwargs":[])", "chat_template_kwargs"}, {R"("samplers":7)", "samplers"}, {R"("ignore_eos":"x")", "ignore_eos"}, {R"("prompt_cache_key":7)", "prompt_cache_key"},
      // Out of range.
      {R"("n":0)", "n"}, {R"("n":1000)", "n"}, {R"("n":-1)", "n"}, {R"("max_tokens":0)", "max_tokens"}, {R"("max_tokens":-2)", "max_tokens"}, {R"("temperature":-1)", "temperature"},
      {R"("top_p":1.1)", "top_p"}, {R"("min_p":-0.1)", "min_p"}, {R"("top_logprobs":5)", "top_logprobs"}, {R"("logprobs":true,"top_logprobs":21)", "top_logprobs"},
      {R"("seed":-2)", "seed"}, {R"("seed":18446744073709551615)", "seed"}, {R"("repeat_penalty":0)", "repeat_penalty"}, {R"("mirostat":3)", "mirostat"}, {R"("dry_base":0.5)", "dry_base"},
      {R"("temperature":1e39)", "temperature"}, {R"("max_tokens":99999999999)", "max_tokens"}, {R"("repeat_last_n":-1)", "repeat_last_n"}, {R"("dry_sequence_breakers":[])", "dry_sequence_breakers"},
      {R"("logit_bias":{"1000":1})", "logit_bias"}, {R"("logit_bias":{"-1":1})", "logit_bias"}, {R"("logit_bias":[[1]])", "logit_bias"}, {R"("logit_bias":{"1":"x"})", "logit_bias"},
      {R"("logit_bias":{"1":true})", "logit_bias"}, {"\"logit_bias\":{\"" + std::string(300, 'a') + "\":1}", "logit_bias"}, {R"("samplers":["top_q"])", "samplers"}, {R"("samplers":"kqz")", "samplers"}, {R"("samplers":[])", "samplers"},
      // Not honoured.
      {R"("frobnicate":1)", "frobnicate"}, {R"("functions":[])", "functions"}, {R"("store":true)", "store"}, {R"("modalities":["text","audio"])", "modalities"},
      {R"("audio":{})", "audio"}, {R"("n_keep":5)", "n_keep"}, {R"("id_slot":3)", "id_slot"}, {R"("lora":[{"id":0,"scale":1}])", "lora"}, {R"("t_max_predict_ms":100)", "t_max_predict_ms"},
      {R"("chat_format":3)", "chat_format"}, {R"("chat_parser":"x")", "chat_parser"}, {R"("grammar_triggers":[])", "grammar_triggers"}, {R"("preserved_tokens":["x"])", "preserved_tokens"},
      {R"("generation_prompt":"x")", "generation_prompt"}, {R"("enable_thinking":false)", "enable_thinking"}, {R"("stream_options":{"x":1})", "stream_options.x"},
      {R"("chat_template_kwargs":{"messages":[]})", "chat_template_kwargs.messages"}, {R"("chat_template_kwargs":{"enable_thinking":"no"})", "chat_template_kwargs.enable_thinking"},
      {R"("reasoning_format":"loud")", "reasoning_format"}, {R"("continue_final_message":"x")", "continue_final_message"},
      // Tools and constraints.
      {R"("tools":[7])", "tools[0]"}, {R"("tools":[{"type":"web_search"}])", "tools[0].type"}, {R"("tools":[{"type":"function"}])", "tools[0].function"},
      {R"("tools":[{"type":"function","function":{"name":""}}])", "tools[0].function.name"}, {R"("tools":[{"type":"function","function":{"name":"a b"}}])", "tools[0].function.name"},
      {R"("tools":[)" + kTool + "," + kTool + "]", "tools[1].function.name"},
      {R"("tools":[{"type":"function","function":{"name":"f","parameters":[]}}])", "tools[0].function.parameters"},
      {R"("tools":[{"type":"function","function":{"name":"f","strict":true,"parameters":{"type":"object","minProperties":1}}}])", "tools[0].function.parameters.minProperties"},
      {R"("tools":[{"type":"function","function":{"name":"f","parameters":{"$ref":"#/a","a":{"$ref":"#/a"}}}}])", "tools[0].function.parameters.a.$ref"},
      {R"("tool_choice":"required")", "tool_choice"}, {R"("tool_choice":"maybe","tools":[)" + kTool + "]", "tool_choice"},
      {R"("tool_choice":{"type":"function","function":{"name":"h"}},"tools":[)" + kTool + "]", "tool_choice.function.name"},
      {R"("tool_choice":{"type":"allowed_tools"},"tools":[)" + kTool + "]", "tool_choice.type"},
      {R"("response_format":{"type":"xml"})", "response_format.type"}, {R"("response_format":{"type":"json_schema"})", "response_format.json_schema"},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"x"}})", "response_format.json_schema.schema"},
      {R"x("response_format":{"type":"json_schema","json_schema":{"schema":{"type":"string","pattern":"(?=a)"}}})x", "response_format.json_schema.schema.pattern"},
      {R"("response_format":{"type":"json_object","x":1})", "response_format.x"},
      {R"("grammar":"root ::= \"a\"","response_format":{"type":"json_object"})", "grammar"},
      {R"("json_schema":{},"response_format":{"type":"json_object"})", "json_schema"},
      {R"("response_format":{"type":"json_object"},"tools":[)" + kTool + "]", "response_format"}, {R"("grammar":"root ::= \"a\"","tools":[)" + kTool + "]", "grammar"},
  };
  for (const Refused& c : cases) {
    auto read = Chat(c.fields);
    ASSERT_TRUE(std::holds_alternative<ApiError>(read)) << c.fields;
    const ApiError& error = std::get<ApiError>(read);
    EXPECT_EQ(error.param, c.param) << c.fields << ": " << error.message;
    EXPECT_EQ(error.status, 400) << c.fields;
    EXPECT_EQ(error.type, "invalid_request_error");
  }
}

TEST(RequestBodyTest, NamesTheFieldThatIsWrongInCompletions) {
  const Refused cases[] = {
      {R"("model":"m")", "prompt"}, {R"("prompt":7)", "prompt"}, {R"("prompt":{})", "prompt"}, {R"("prompt":[])", "prompt"},
      {R"("prompt":[[]])", "prompt[0]"}, {R"("prompt":[1000])", "prompt[0]"}, {R"("prompt":[1,-1])", "prompt[1]"}, {R"("prompt":[1,2.5])", "prompt[1]"}, {R"("prompt":[["a"],[true]])", "prompt[1][0]"},
      {R"("prompt":"a","echo":true)", "echo"}, {R"("prompt":"a","suffix":"b")", "suffix"}, {R"("prompt":"a","best_of":2)", "best_of"}, {R"("prompt":"a","logprobs":true)", "logprobs"},
      {R"("prompt":"a","logprobs":21)", "logprobs"}, {R"("prompt":"a","tools":[])", "tools"}, {R"("prompt":"a","messages":[])", "messages"},
  };
  for (const Refused& c : cases) {
    auto read = Completion(c.fields);
    ASSERT_TRUE(std::holds_alternative<ApiError>(read)) << c.fields;
    EXPECT_EQ(std::get<ApiError>(read).param, c.param) << c.fields << ": " << std::get<ApiError>(read).message;
  }
  EXPECT_TRUE(std::holds_alternative<CompletionBody>(Completion(R"("prompt":"a","echo":false,"suffix":"","best_of":1,"logprobs":0)")));
  std::string many = "\"prompt\":[\"a\"";
  for (int i = 0; i < 64; ++i) many += ",\"a\"";
  EXPECT_TRUE(std::holds_alternative<ApiError>(Completion(many + "]")));
}

}  // namespace
}  // namespace meshnet::text
