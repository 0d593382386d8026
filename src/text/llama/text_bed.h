// For tests: models over the vocabularies that llama.cpp's tree brings, and answers forced token by token.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "text/llama/llama_text_model.h"

namespace meshnet::text {

// Qwen2.5's template in short: tools in <tools>, calls in <tool_call>. Strict like newer ones: a system message only in front, and turns that alternate.
inline constexpr char kStrictToolTemplate[] =
    R"({%- if tools %}{{- '<|im_start|>system\n' }}{%- if messages[0]['role'] == 'system' %}{{- messages[0]['content'] }}{%- endif %})"
    R"({{- '\n\n# Tools\n\nYou may call one or more functions.\n<tools>' }}{%- for tool in tools %}{{- '\n' }}{{- tool | tojson }}{%- endfor %})"
    R"({{- '\n</tools>\n\nFor each function call, return a json object within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n' }})"
    R"({%- elif messages[0]['role'] == 'system' %}{{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}{%- endif %})"
    R"({%- for message in messages %})"
    R"({%- if message.role == 'system' and not loop.first %}{{- raise_exception('System message must be at the beginning.') }}{%- endif %})"
    R"({%- if message.role == 'user' and not loop.first and loop.previtem.role == 'user' %}{{- raise_exception('Conversation roles must alternate user/assistant.') }}{%- endif %})"
    R"({%- if message.role == 'user' or (message.role == 'assistant' and not message.tool_calls) %}{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }})"
    R"({%- elif message.role == 'assistant' %}{{- '<|im_start|>assistant' }}{%- if message.content %}{{- '\n' + message.content }}{%- endif %})"
    R"({%- for tool_call in message.tool_calls %}{%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %})"
    R"({{- '\n<tool_call>\n{\"name\": \"' }}{{- tool_call.name }}{{- '\", \"arguments\": ' }}{{- tool_call.arguments | tojson }}{{- '}\n</tool_call>' }}{%- endfor %}{{- '<|im_end|>\n' }})"
    R"({%- elif message.role == 'tool' %}{{- '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response><|im_end|>\n' }}{%- endif %}{%- endfor %})"
    R"({%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %})";

inline constexpr char kChatMl[] =
    "{%- for message in messages -%}{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}";

inline constexpr char kLlama3[] =
    "{{- bos_token }}{%- for message in messages %}{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}";

// Thinks in <think> before it answers; the template drops the thoughts of earlier turns.
inline constexpr char kThinking[] =
    "{%- for message in messages -%}{%- if message.role == 'assistant' and message.reasoning_content -%}{{- '<|im_start|>assistant\n<think>\n' + message.reasoning_content + "
    "'\n</think>\n\n' + message.content + '<|im_end|>\n' -}}{%- else -%}{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' -}}{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- if enable_thinking is defined and enable_thinking is false -%}{{- '<think>\n\n</think>\n\n' -}}{%- endif -%}{%- endif -%}";

// Loaded once per vocabulary and template; `vocabulary` as in "qwen2" of models/ggml-vocab-qwen2.gguf.
inline const TextModel& Model(const std::string& vocabulary, const std::string& chat_template) {
  static std::map<std::pair<std::string, std::string>, std::unique_ptr<TextModel>> models;
  auto& model = models[{vocabulary, chat_template}];
  if (model == nullptr) {
    TextModelOptions options;
    options.vocab_path = std::string(MESHNET_LLAMA_CPP_DIR) + "/models/ggml-vocab-" + vocabulary + ".gguf";
    options.chat_template = chat_template;
    auto created = CreateLlamaTextModel(options);
    if (!created.ok()) {
      ADD_FAILURE() << created.status().message();
      std::abort();
    }
    model = std::move(created).value();
  }
  return *model;
}

inline std::unique_ptr<ParsedRequest> MustParse(const TextModel& model, ApiKind kind, const std::string& body, uint32_t context_tokens = 4096) {
  auto parsed = model.Parse(kind, body, context_tokens);
  if (auto* error = std::get_if<ApiError>(&parsed)) {
    ADD_FAILURE() << body << ": " << error->ToJson().dump();
    return nullptr;
  }
  return std::get<std::unique_ptr<ParsedRequest>>(std::move(parsed));
}

inline ApiError MustRefuse(const TextModel& model, ApiKind kind, const std::string& body, uint32_t context_tokens = 4096) {
  auto parsed = model.Parse(kind, body, context_tokens);
  if (auto* error = std::get_if<ApiError>(&parsed)) return *error;
  ADD_FAILURE() << "taken: " << body;
  return {};
}

// What a client sees of one choice.
struct Transcript {
  std::vector<nlohmann::ordered_json> events;  // all chunks
  nlohmann::ordered_json choice;               // the non-stream form of the same answer
  bool stopped = false;
  // Put together as SDKs do it.
  std::string content;
  std::string reasoning;
  std::vector<nlohmann::ordered_json> tool_calls;
  nlohmann::ordered_json logprobs = nlohmann::ordered_json::array();  // content entries of all chunks
  std::string finish_reason;
};

inline void Accumulate(const nlohmann::ordered_json& choice, Transcript* transcript) {
  if (choice.contains("text")) transcript->content += choice["text"].get<std::string>();
  const nlohmann::ordered_json delta = choice.value("delta", nlohmann::ordered_json::object());
  if (delta.contains("content") && delta["content"].is_string()) transcript->content += delta["content"].get<std::string>();
  if (delta.contains("reasoning_content")) transcript->reasoning += delta["reasoning_content"].get<std::string>();
  for (const auto& call : delta.value("tool_calls", nlohmann::ordered_json::array())) {
    const size_t index = call.at("index").get<size_t>();
    if (index == transcript->tool_calls.size()) {
      EXPECT_TRUE(call.contains("id") && call.contains("type") && call["function"].contains("name")) << call.dump();
      transcript->tool_calls.push_back(call);
      continue;
    }
    // id and name come once: openai-python would join repeated ones.
    EXPECT_FALSE(call.contains("id") || call["function"].contains("name")) << call.dump();
    auto& arguments = transcript->tool_calls.at(index)["function"]["arguments"];
    arguments = arguments.get<std::string>() + call["function"]["arguments"].get<std::string>();
  }
  if (choice["logprobs"].is_object()) {
    for (const auto& entry : choice["logprobs"]["content"]) transcript->logprobs.push_back(entry);
  }
  if (choice["finish_reason"].is_string()) {
    EXPECT_EQ(transcript->finish_reason, "") << "two finish chunks";
    transcript->finish_reason = choice["finish_reason"].get<std::string>();
  }
}

enum class Ending { kEndOfGeneration, kCut };

inline Transcript Force(const TextModel& model, const ParsedRequest& request, const std::vector<SampledToken>& tokens, Ending ending) {
  Transcript transcript;
  auto writer = request.NewWriter(0);
  const auto add = [&](std::vector<nlohmann::ordered_json> events) {
    for (auto& event : events) {
      EXPECT_NO_THROW(event.dump()) << "not strict JSON";
      Accumulate(event["choices"][0], &transcript);
      transcript.events.push_back(std::move(event));
    }
  };
  add(writer->Begin());
  for (const SampledToken& token : tokens) {
    auto fed = writer->Feed(token);
    add(std::move(fed.events));
    transcript.stopped = fed.stopped;
    if (fed.stopped) break;
  }
  (void)model;
  add(writer->End(!transcript.stopped && ending == Ending::kCut));
  transcript.choice = writer->Choice();
  EXPECT_NO_THROW(transcript.choice.dump());
  return transcript;
}

inline std::vector<SampledToken> Sampled(const std::vector<Token>& tokens) {
  std::vector<SampledToken> sampled;
  for (Token token : tokens) {
    SampledToken one;
    one.token = token;
    sampled.push_back(one);
  }
  return sampled;
}

// The tokens of a text, markers such as <tool_call> included.
inline std::vector<Token> Tokens(const TextModel& model, const std::string& text) {
  auto tokenized = model.Tokenize(nlohmann::json{{"content", text}}.dump());
  return std::get<nlohmann::ordered_json>(tokenized)["tokens"].get<std::vector<Token>>();
}

inline Transcript ForceText(const TextModel& model, const ParsedRequest& request, const std::string& text, Ending ending) {
  return Force(model, request, Sampled(Tokens(model, text)), ending);
}

}  // namespace meshnet::text
