#include "text/llama/llama_answer_writer.h"

#include <cmath>
#include <random>
#include <thread>

#include "text/llama/text_bed.h"

namespace meshnet::text {
namespace {

using nlohmann::ordered_json;

const std::string kHi = R"("messages":[{"role":"user","content":"hi"}])";
const std::string kWeather =
    R"("tools":[{"type":"function","function":{"name":"get_weather","description":"d","parameters":{"type":"object","properties":)"
    R"({"city":{"type":"string"},"days":{"type":"integer"}},"required":["city"]}}}])";
const std::string kCall = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Z\u00fcrich \U0001F600\", \"days\": 3}}\n</tool_call>";

std::string Text(const ordered_json& bytes) {
  std::string text;
  for (const auto& byte : bytes) text += static_cast<char>(byte.get<int>());
  return text;
}

TEST(LlamaAnswerWriterTest, RoleFirstThenTextThenOneFinish) {
  const TextModel& model = Model("qwen2", kChatMl);
  auto request = MustParse(model, ApiKind::kChat, "{" + kHi + R"(,"stream":true,"model":"asked"})");
  const Transcript t = ForceText(model, *request, "Hello \U0001F600 world", Ending::kEndOfGeneration);
  EXPECT_EQ(t.events.front()["choices"][0]["delta"].dump(), R"({"role":"assistant","content":null})");
  EXPECT_EQ(t.events.back()["choices"][0].dump(), R"({"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"})");
  EXPECT_EQ(t.content, "Hello \U0001F600 world");
  EXPECT_EQ(t.choice["message"].dump(), "{\"role\":\"assistant\",\"content\":\"Hello \U0001F600 world\"}");
  for (const auto& event : t.events) {
    EXPECT_EQ(event["object"], "chat.completion.chunk");
    EXPECT_EQ(event["id"], t.events.front()["id"]);
    EXPECT_EQ(event["created"], t.events.front()["created"]);
    EXPECT_EQ(event["model"], "asked");
    EXPECT_TRUE(event["system_fingerprint"].is_string());
    EXPECT_FALSE(event.contains("usage"));
  }
  EXPECT_TRUE(t.events.front()["id"].get<std::string>().starts_with("chatcmpl-"));
  const ordered_json usage = request->UsageEvent({.prompt_tokens = 5, .cached_tokens = 2, .completion_tokens = 3});
  EXPECT_EQ(usage["choices"].dump(), "[]");
  EXPECT_EQ(usage["usage"].dump(), R"({"prompt_tokens":5,"completion_tokens":3,"total_tokens":8,"prompt_tokens_details":{"cached_tokens":2}})");
  const ordered_json body = request->Body({t.choice}, {.prompt_tokens = 5, .cached_tokens = 2, .completion_tokens = 3});
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_EQ(body["choices"][0], t.choice);
  EXPECT_EQ(body["usage"], usage["usage"]);
}

// The Llama 2 vocabulary spells what it does not know in byte tokens: four for an emoji.
TEST(LlamaAnswerWriterTest, HoldsBackBytesUntilTheCharacterIsWhole) {
  const TextModel& model = Model("llama-spm", kChatMl);
  for (ApiKind kind : {ApiKind::kChat, ApiKind::kCompletion}) {
    auto request = MustParse(model, kind, kind == ApiKind::kChat ? "{" + kHi + "}" : R"({"prompt":"x"})");
    const std::vector<Token> tokens = Tokens(model, "a\U0001F9ECb");
    ASSERT_GT(tokens.size(), 5u) << "the emoji must be split";
    const Transcript t = Force(model, *request, Sampled(tokens), Ending::kEndOfGeneration);
    EXPECT_NE(t.content.find("a\U0001F9ECb"), std::string::npos);
    const Transcript cut = Force(model, *request, Sampled({tokens.begin(), tokens.end() - 3}), Ending::kCut);
    EXPECT_TRUE(cut.content.ends_with("a")) << cut.content;
    EXPECT_EQ(cut.finish_reason, "length");
    EXPECT_EQ(kind == ApiKind::kChat ? cut.choice["message"]["content"] : cut.choice["text"], cut.content);
  }
}

TEST(LlamaAnswerWriterTest, NeverShowsAStopString) {
  const TextModel& model = Model("gpt-2", kChatMl);
  for (ApiKind kind : {ApiKind::kChat, ApiKind::kCompletion}) {
    auto request = MustParse(model, kind, (kind == ApiKind::kChat ? "{" + kHi : std::string(R"({"prompt":"x")")) + R"(,"stop":["lo wor","zzz"]})");
    // Letter by letter, so that the stop string is split over six tokens.
    std::vector<Token> tokens;
    for (char c : std::string("Hello world")) {
      const auto piece = Tokens(model, std::string(1, c));
      tokens.insert(tokens.end(), piece.begin(), piece.end());
    }
    const Transcript t = Force(model, *request, Sampled(tokens), Ending::kEndOfGeneration);
    EXPECT_TRUE(t.stopped);
    EXPECT_EQ(t.content, "Hel");
    EXPECT_EQ(t.finish_reason, "stop");
    const Transcript cut = Force(model, *request, Sampled({tokens.begin(), tokens.begin() + 7}), Ending::kCut);
    EXPECT_EQ(cut.content, "Hello w") << "what only looked like a stop string comes at the end";
  }
}

TEST(LlamaAnswerWriterTest, SpecialTokensDoNotLeak) {
  const TextModel& model = Model("qwen2", kChatMl);
  auto request = MustParse(model, ApiKind::kChat, "{" + kHi + "}");
  std::vector<Token> tokens = Tokens(model, "ok<|im_start|>fine");
  const Transcript t = Force(model, *request, Sampled(tokens), Ending::kEndOfGeneration);
  EXPECT_EQ(t.content, "okfine");
  tokens = Tokens(model, "ok<|im_end|>never");
  const Transcript ended = Force(model, *request, Sampled(tokens), Ending::kCut);
  EXPECT_TRUE(ended.stopped);
  EXPECT_EQ(ended.content, "ok");
  EXPECT_EQ(ended.finish_reason, "stop");
}

TEST(LlamaAnswerWriterTest, ToolCallsAreTheSameStreamedAndWhole) {
  const TextModel& model = Model("qwen2", kStrictToolTemplate);
  auto request = MustParse(model, ApiKind::kChat, "{" + kHi + "," + kWeather + R"(,"parallel_tool_calls":true})");
  const Transcript t = ForceText(model, *request, "Let me see.\n" + kCall + "\n" + kCall, Ending::kEndOfGeneration);
  EXPECT_EQ(t.finish_reason, "tool_calls");
  ASSERT_EQ(t.tool_calls.size(), 2u);
  const ordered_json& message = t.choice["message"];
  ASSERT_EQ(message["tool_calls"].size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(t.tool_calls[i]["function"]["name"], "get_weather");
    EXPECT_EQ(ordered_json::parse(t.tool_calls[i]["function"]["arguments"].get<std::string>()).dump(), "{\"city\":\"Z\u00fcrich \U0001F600\",\"days\":3}");
    EXPECT_EQ(message["tool_calls"][i]["id"], t.tool_calls[i]["id"]);
    EXPECT_EQ(message["tool_calls"][i]["function"], t.tool_calls[i]["function"]);
  }
  EXPECT_NE(t.tool_calls[0]["id"], t.tool_calls[1]["id"]);
  EXPECT_EQ(message["content"], t.content);
  EXPECT_EQ(t.content.find("tool_call"), std::string::npos);

  const Transcript lone = ForceText(model, *request, kCall, Ending::kEndOfGeneration);
  EXPECT_TRUE(lone.choice["message"]["content"].is_null());
}

// An agent runs what is reported as tool_calls (V#53269): cut anywhere, it is `length` unless the arguments are whole, and both modes agree.
TEST(LlamaAnswerWriterTest, CutToolCallsAreNeverReportedAsCalls) {
  const TextModel& model = Model("qwen2", kStrictToolTemplate);
  for (const std::string choice : {"\"auto\"", "\"required\""}) {
    auto request = MustParse(model, ApiKind::kChat, "{" + kHi + "," + kWeather + ",\"tool_choice\":" + choice + "}");
    const std::vector<Token> tokens = Tokens(model, kCall);
    int calls = 0, lengths = 0;
    for (size_t count = 1; count <= tokens.size(); ++count) {
      const Transcript t = Force(model, *request, Sampled({tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count)}), Ending::kCut);
      bool whole = !t.tool_calls.empty();
      for (const auto& call : t.tool_calls) whole = whole && ordered_json::accept(call["function"]["arguments"].get<std::string>());
      EXPECT_EQ(t.finish_reason, whole ? "tool_calls" : "length") << count;
      EXPECT_EQ(t.choice["finish_reason"], t.finish_reason);
      const ordered_json whole_calls = t.choice["message"].value("tool_calls", ordered_json::array());
      ASSERT_EQ(whole_calls.size(), t.tool_calls.size()) << count;
      for (size_t i = 0; i < whole_calls.size(); ++i) EXPECT_EQ(whole_calls[i]["function"], t.tool_calls[i]["function"]) << count;
      ++(whole ? calls : lengths);
    }
    EXPECT_GT(calls, 0);
    EXPECT_GT(lengths, 10);
  }
}

TEST(LlamaAnswerWriterTest, ThoughtsAreApartAndTheSchemaIsNotTheirs) {
  const TextModel& model = Model("qwen2", kThinking);
  auto plain = MustParse(model, ApiKind::kChat, "{" + kHi + "}");
  const Transcript t = ForceText(model, *plain, "<think>\nwhy not\n</think>\n\nanswer", Ending::kEndOfGeneration);
  EXPECT_EQ(t.reasoning, "why not\n");  // the line break in front of the tag is llama.cpp's to keep
  EXPECT_EQ(t.content, "answer");
  EXPECT_EQ(t.choice["message"]["reasoning_content"], "why not\n");
  EXPECT_EQ(t.choice["message"]["content"], "answer");
  const Transcript cut = ForceText(model, *plain, "<think>\nwhy", Ending::kCut);
  EXPECT_EQ(cut.reasoning, "why");
  EXPECT_EQ(cut.content, "");
  EXPECT_EQ(cut.finish_reason, "length");

  // Thoughts that look like the answer stay thoughts.
  auto json = MustParse(model, ApiKind::kChat, "{" + kHi + R"(,"response_format":{"type":"json_schema","json_schema":{"schema":{"type":"object","properties":{"a":{"const":1}},"required":["a"]}}}})");
  const Transcript shaped = ForceText(model, *json, "<think>\n{\"a\": 2}\n</think>\n\n{\"a\": 1}", Ending::kEndOfGeneration);
  EXPECT_EQ(shaped.reasoning, "{\"a\": 2}\n");
  EXPECT_EQ(shaped.content, "{\"a\": 1}");
  // The grammar that the tail runs lets the thoughts be free and holds the rest to the schema.
  const std::string& grammar = json->choices[0].sampling.grammar;
  EXPECT_NE(grammar.find("<think>"), std::string::npos) << grammar;
  EXPECT_FALSE(json->choices[0].sampling.grammar_lazy);
}

std::vector<SampledToken> WithLogprobs(const TextModel& model, const std::string& text, uint32_t top) {
  std::vector<SampledToken> sampled = Sampled(Tokens(model, text));
  for (size_t i = 0; i < sampled.size(); ++i) {
    sampled[i].logprob = -0.25f * static_cast<float>(i);
    for (uint32_t k = 0; k < top; ++k) sampled[i].top.push_back({sampled[i].token + static_cast<Token>(k), k == top - 1 ? -INFINITY : -0.5f * static_cast<float>(k)});
  }
  return sampled;
}

TEST(LlamaAnswerWriterTest, LogprobsSpellTheText) {
  const std::string text = "Grüße \U0001F9EC an \U0001F600 alle.";
  for (const char* vocabulary : {"llama-spm", "qwen2", "gpt-2"}) {
    const TextModel& model = Model(vocabulary, kChatMl);
    for (uint32_t top : {0u, 5u, 20u}) {
      for (ApiKind kind : {ApiKind::kChat, ApiKind::kCompletion}) {
        const std::string ask = kind == ApiKind::kChat ? "{" + kHi + ",\"logprobs\":true,\"top_logprobs\":" + std::to_string(top) + "}"
                                                       : "{\"prompt\":\"x\",\"logprobs\":" + std::to_string(top) + "}";
        auto request = MustParse(model, kind, ask);
        EXPECT_TRUE(request->choices[0].sampling.logprobs_wanted);
        EXPECT_EQ(request->choices[0].sampling.logprobs, top);
        const Transcript t = Force(model, *request, WithLogprobs(model, text, top), Ending::kEndOfGeneration);
        std::string streamed, whole;
        for (const auto& entry : t.logprobs) {
          streamed += Text(entry["bytes"]);
          EXPECT_EQ(entry["top_logprobs"].size(), top);
          EXPECT_TRUE(entry["logprob"].is_number());
        }
        for (const auto& entry : t.choice["logprobs"]["content"]) whole += Text(entry["bytes"]);
        EXPECT_EQ(streamed, t.content) << vocabulary;
        EXPECT_EQ(whole, t.content);
        EXPECT_EQ(t.choice["logprobs"]["content"], t.logprobs) << "both modes agree";
        if (kind == ApiKind::kChat) continue;
        const ordered_json& legacy = t.choice["logprobs"];
        ASSERT_EQ(legacy["tokens"].size(), t.logprobs.size());
        EXPECT_EQ(legacy["token_logprobs"].size(), t.logprobs.size());
        EXPECT_EQ(legacy["top_logprobs"].size(), t.logprobs.size());
        EXPECT_EQ(legacy["text_offset"][0], 0);
        EXPECT_TRUE(std::is_sorted(legacy["text_offset"].begin(), legacy["text_offset"].end()));
      }
    }
  }
}

TEST(LlamaAnswerWriterTest, LogprobsEndWhereTheTextEnds) {
  const TextModel& model = Model("qwen2", kChatMl);
  auto request = MustParse(model, ApiKind::kChat, "{" + kHi + R"(,"logprobs":true,"stop":"lo w"})");
  const Transcript t = Force(model, *request, WithLogprobs(model, "Hello world", 0), Ending::kEndOfGeneration);
  std::string spelled;
  for (const auto& entry : t.logprobs) spelled += Text(entry["bytes"]);
  EXPECT_EQ(t.content, "Hel");
  EXPECT_EQ(spelled, "Hel");
  EXPECT_EQ(t.choice["logprobs"]["content"], t.logprobs);
  auto without = MustParse(model, ApiKind::kChat, "{" + kHi + "}");
  EXPECT_TRUE(ForceText(model, *without, "Hello", Ending::kEndOfGeneration).choice["logprobs"].is_null());
  auto after = MustParse(model, ApiKind::kChat, "{" + kHi + R"(,"n_probs":2,"post_sampling_probs":true})");
  const Transcript p = Force(model, *after, WithLogprobs(model, "Hello", 2), Ending::kEndOfGeneration);
  EXPECT_NEAR(p.logprobs[0]["prob"].get<double>(), 1.0, 1e-6);
  EXPECT_EQ(p.logprobs[0]["top_probs"].size(), 2u);
}

TEST(LlamaAnswerWriterTest, ReturnsTokensWhenAsked) {
  const TextModel& model = Model("qwen2", kChatMl);
  auto request = MustParse(model, ApiKind::kCompletion, R"({"prompt":"x","return_tokens":true})");
  const std::vector<Token> tokens = Tokens(model, "Hello big world");
  const Transcript t = Force(model, *request, Sampled(tokens), Ending::kEndOfGeneration);
  EXPECT_EQ(t.choice["tokens"].get<std::vector<Token>>(), tokens);
  std::vector<Token> streamed;
  for (const auto& event : t.events) {
    const auto part = event["choices"][0].value("tokens", std::vector<Token>());
    streamed.insert(streamed.end(), part.begin(), part.end());
  }
  EXPECT_EQ(streamed, tokens);
}

// A client can force brackets by logit_bias; llama.cpp's parser would recurse along them until the stack ends.
TEST(LlamaAnswerWriterTest, EndsAnAnswerThatNestsTooDeep) {
  const TextModel& model = Model("qwen2", kStrictToolTemplate);
  auto request = MustParse(model, ApiKind::kChat, "{" + kHi + R"(,"response_format":{"type":"json_object"}})");
  const Transcript t = ForceText(model, *request, "{\"a\":" + std::string(20000, '['), Ending::kEndOfGeneration);
  EXPECT_TRUE(t.stopped);
  EXPECT_EQ(t.finish_reason, "length");
  // Where nothing parses JSON, brackets are text.
  auto plain = MustParse(model, ApiKind::kChat, "{" + kHi + "}");
  EXPECT_EQ(ForceText(model, *plain, std::string(3000, '['), Ending::kEndOfGeneration).content, std::string(3000, '['));
}

// Whatever the model says, a client gets strict JSON, one finish chunk and the same message in both modes.
TEST(LlamaAnswerWriterTest, SurvivesWhatModelsSay) {
  std::mt19937 random(3);
  const std::string parts[] = {"<tool_call>", "</tool_call>", "\n", "{\"name\": \"get_weather\", \"arguments\": {", "\"city\": \"a\"", "}", "{", "\"", "<think>", "</think>", " x ", "\U0001F600",
                               "[TOOL_CALLS]", "<|im_start|>", "\\", "get_weather"};
  const TextModel& tools = Model("qwen2", kStrictToolTemplate);
  const TextModel& thinking = Model("qwen2", kThinking);
  auto with_tools = MustParse(tools, ApiKind::kChat, "{" + kHi + "," + kWeather + "}");
  auto required = MustParse(tools, ApiKind::kChat, "{" + kHi + "," + kWeather + R"(,"tool_choice":"required"})");
  auto thoughts = MustParse(thinking, ApiKind::kChat, "{" + kHi + "}");
  auto json = MustParse(thinking, ApiKind::kChat, "{" + kHi + R"(,"response_format":{"type":"json_object"}})");
  for (int round = 0; round < 400; ++round) {
    std::string text;
    for (unsigned i = random() % 9; i > 0; --i) text += parts[random() % std::size(parts)];
    for (const auto& [model, request] : {std::pair{&tools, &with_tools}, {&tools, &required}, {&thinking, &thoughts}, {&thinking, &json}}) {
      const Transcript t = ForceText(*model, **request, text, random() % 2 == 0 ? Ending::kCut : Ending::kEndOfGeneration);
      ASSERT_NE(t.finish_reason, "") << text;
      const ordered_json& message = t.choice["message"];
      ASSERT_EQ(message["content"].is_null() ? "" : message["content"].get<std::string>(), t.content) << text;
      ASSERT_EQ(message.value("reasoning_content", ""), t.reasoning) << text;
      ASSERT_EQ(message.value("tool_calls", ordered_json::array()).size(), t.tool_calls.size()) << text;
      for (size_t i = 0; i < t.tool_calls.size(); ++i) ASSERT_EQ(message["tool_calls"][i]["function"], t.tool_calls[i]["function"]) << text;
    }
  }
}

TEST(LlamaAnswerWriterTest, GathersTokensOfLongAnswers) {
  const TextModel& model = Model("qwen2", kStrictToolTemplate);
  auto request = MustParse(model, ApiKind::kChat, "{" + kHi + "," + kWeather + "}");
  std::string text;
  while (text.size() < 40000) text += "word " + std::to_string(text.size()) + "\n";
  const Transcript t = ForceText(model, *request, text, Ending::kEndOfGeneration);
  EXPECT_EQ(t.content, text);
  EXPECT_EQ(t.choice["message"]["content"], text);
}

TEST(LlamaAnswerWriterTest, WritersWorkOnManyThreads) {
  const TextModel& model = Model("qwen2", kStrictToolTemplate);
  const std::vector<Token> tokens = Tokens(model, "Let me see.\n" + kCall);
  std::vector<std::thread> threads;
  std::vector<std::string> arguments(4);
  for (size_t i = 0; i < arguments.size(); ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 5; ++round) {
        auto request = MustParse(model, ApiKind::kChat, "{" + kHi + "," + kWeather + "}");
        std::unique_ptr<AnswerWriter> writer = request->NewWriter(0);
        // The writer moves to another thread than the one that parsed.
        std::thread([&] {
          for (const SampledToken& token : Sampled(tokens)) writer->Feed(token);
          writer->End(false);
        }).join();
        arguments[i] = writer->Choice()["message"]["tool_calls"][0]["function"]["arguments"];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& one : arguments) EXPECT_EQ(one, arguments[0]);
  EXPECT_NE(arguments[0], "");
}

}  // namespace
}  // namespace meshnet::text
