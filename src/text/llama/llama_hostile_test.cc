// Requests that ended or froze other servers: each is answered with a typed error, or honoured.
#include <gtest/gtest.h>

#include "text/llama/text_bed.h"

namespace meshnet::text {
namespace {

const std::string kHi = R"("messages":[{"role":"user","content":"hi"}])";

std::string Repeat(const std::string& piece, size_t count) {
  std::string text;
  text.reserve(piece.size() * count);
  for (size_t i = 0; i < count; ++i) text += piece;
  return text;
}

TEST(LlamaHostileTest, BodiesAreAnsweredInShape) {
  const TextModel& model = Model("qwen2", kStrictToolTemplate);
  std::string many_tools = "\"tools\":[";
  for (int i = 0; i < 300; ++i) many_tools += (i > 0 ? "," : "") + std::string(R"({"type":"function","function":{"name":"f)") + std::to_string(i) + "\"}}";
  const std::string bodies[] = {
      "", "null", "[]", "{", "\xFF\xFE", std::string(1, '\0'), "{}", R"({"messages":null})", R"({"messages":[{"role":"assistant"}]})",
      R"({"messages":[{"role":"assistant","content":"a"},{"role":"assistant","content":"b"}]})",
      R"({"messages":[{"role":"user","content":"hi"},{"role":"assistant","tool_calls":[{"function":{"name":"f"}}]}]})",
      R"({"messages":[{"role":"tool","content":"x"}]})", R"({"messages":[{"role":"system","content":"x"}]})",
      R"({"messages":[{"role":"user","content":"\u0000\u0001\ufffd\ud83d\ude00"}]})", R"({"messages":[{"role":"user","content":"{{ 7*7 }}{% raw %}"}]})",
      "{" + kHi + R"(,"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"":{"type":"string"},"\u0000":{},"\"}":{}}}}}]})",
      "{" + kHi + R"(,"response_format":{"type":"json_schema","json_schema":{"schema":{"enum":["\u0000","\"","\\","\n"]}}}})",
      "{" + kHi + R"(,"response_format":{"type":"json_schema","json_schema":{"schema":{"type":"object","properties":{"a":{"const":{"b":[[[1]]]}}},"additionalProperties":true}}}})",
      "{" + kHi + R"(,"json_schema":{"type":"integer","minimum":-9007199254740991,"maximum":9007199254740991}})",
      "{" + kHi + R"(,"json_schema":{"type":"array","items":{"type":"string","maxLength":2000},"maxItems":2000}})",
      "{" + kHi + ",\"json_schema\":" + Repeat("{\"type\":\"array\",\"items\":", 50) + "{}" + Repeat("}", 50) + "}",
      "{" + kHi + R"(,"chat_template_kwargs":{"tools_in_user_message":true,"x":)" + Repeat("[", 100) + Repeat("]", 100) + "}}",
      "{" + kHi + R"(,"chat_template_kwargs":{"reasoning_effort":{},"preserve_reasoning":"x","datetime":7}})", "{" + kHi + R"(,"reasoning_effort":"\u0000"})",
      "{" + kHi + "," + many_tools + "]}", "{" + kHi + R"(,"reasoning_budget_tokens":0,"reasoning_budget_message":"x"})",
      "{" + kHi + R"(,"continue_final_message":true})", "{" + kHi + R"(,"add_generation_prompt":false})", "{" + kHi + R"(,"stop":["\ud83d\ude00","\u0000"]})",
      "{" + kHi + R"(,"logit_bias":{"\ud83d\ude00":1,"hello world":false}})", "{" + kHi + R"(,"grammar":"root ::= [\u0000]"})",
      "{" + kHi + R"(,"grammar":"root ::= \"\\U0010FFFF\" [^\\x00-\\x7f]{2}"})", "{" + kHi + R"(,"grammar":"%llguidance {}\nstart: \"a\""})",
      R"({"messages":[{"role":"user","content":")" + Repeat("<|im_start|>system\\n", 2000) + "\"}]}",
  };
  for (const std::string& body : bodies) {
    auto parsed = model.Parse(ApiKind::kChat, body, 4096);
    if (auto* error = std::get_if<ApiError>(&parsed)) {
      EXPECT_TRUE(error->status == 400 || error->status == 413 || error->status == 501) << error->status << " " << body.substr(0, 300);
      EXPECT_NE(error->message, "");
      EXPECT_LT(error->message.size(), 1000u) << "an error is a sentence: " << error->message;
      EXPECT_NO_THROW(error->ToJson().dump());
    } else {
      auto& request = *std::get<std::unique_ptr<ParsedRequest>>(parsed);
      ASSERT_FALSE(request.choices.empty());
      EXPECT_FALSE(request.choices[0].prompt.empty());
    }
  }
}

// std::regex in these vocabularies' pre-tokenizers recurses once a character: 27,000 of one kind in a row ended the process.
TEST(LlamaHostileTest, LongRunsDoNotEndTheStack) {
  for (const char* vocabulary : {"deepseek-llm", "deepseek-coder", "gpt-neox", "falcon", "aquila"}) {
    const TextModel& model = Model(vocabulary, kChatMl);
    for (const std::string& unit : {std::string("a"), std::string(" "), std::string("7"), std::string("!"), std::string("\u6f22"), std::string("a "), std::string(" \u3000")}) {
      const std::string text = Repeat(unit, 60000);
      auto parsed = model.Parse(ApiKind::kCompletion, nlohmann::json{{"prompt", text}}.dump(), 200000);
      EXPECT_TRUE(std::holds_alternative<std::unique_ptr<ParsedRequest>>(parsed)) << vocabulary;
    }
  }
  // Beyond what a stack is made for, a refusal.
  const TextModel& model = Model("deepseek-llm", kChatMl);
  const ApiError error = MustRefuse(model, ApiKind::kCompletion, "{\"prompt\":\"" + std::string(2u << 20, 'a') + "\"}", UINT32_MAX);
  EXPECT_EQ(error.status, 400);
  EXPECT_EQ(error.param, "prompt");
}

// llama.cpp needs quadratic time for characters that are tokens of their own; what cannot fit is not tokenized at all.
TEST(LlamaHostileTest, WhatCannotFitIsNotTokenized) {
  const TextModel& model = Model("phi-3", kChatMl);
  const ApiError error = MustRefuse(model, ApiKind::kCompletion, "{\"prompt\":\"" + Repeat("\\n", 4u << 20) + "\"}", 4096);
  EXPECT_EQ(error.code, "context_length_exceeded");
}

// No chat template in a file: ChatML, as llama-server. No tokenizer that can write: still typed answers.
TEST(LlamaHostileTest, EveryVocabularyAnswers) {
  for (const char* vocabulary : {"bert-bge", "nomic-bert-moe", "command-r", "mpt", "refact", "starcoder", "baichuan", "qwen35", "gemma-4"}) {
    const TextModel& model = Model(vocabulary, "");
    for (const std::string& body : {"{" + kHi + "}", "{" + kHi + R"(,"response_format":{"type":"json_object"}})"}) {
      auto parsed = model.Parse(ApiKind::kChat, body, 4096);
      if (auto* error = std::get_if<ApiError>(&parsed)) {
        EXPECT_EQ(error->status, 400) << vocabulary << ": " << error->message;
      } else {
        ForceText(model, *std::get<std::unique_ptr<ParsedRequest>>(parsed), "{\"a\": \"b \U0001F600\"}", Ending::kEndOfGeneration);
      }
    }
  }
}

}  // namespace
}  // namespace meshnet::text
