#include "text/fake_text_model.h"

#include <gtest/gtest.h>

namespace meshnet {
namespace {

std::unique_ptr<ParsedRequest> MustParse(const TextModel& model, ApiKind kind, const std::string& body) {
  auto parsed = model.Parse(kind, body, 4096);
  if (auto* error = std::get_if<ApiError>(&parsed)) {
    ADD_FAILURE() << error->message;
    return nullptr;
  }
  return std::move(std::get<0>(parsed));
}

TEST(FakeTextModelTest, StreamsTheTextOfTheTokensItIsFed) {
  auto model = CreateFakeTextModel({});
  auto request = MustParse(*model, ApiKind::kChat, R"({"messages":[{"role":"user","content":"hi"}],"stream":true,"stop":"END","n":2,"seed":7})");
  ASSERT_NE(request, nullptr);
  ASSERT_EQ(request->choices.size(), 2u);
  EXPECT_EQ(request->choices[0].prompt, model->TokenizeText("user:hi\nassistant:"));
  EXPECT_EQ(request->choices[1].sampling.seed, 8u);
  auto writer = request->NewWriter(0);
  EXPECT_EQ(writer->Begin()[0]["choices"][0]["delta"]["role"], "assistant");
  std::string streamed;
  bool stopped = false;
  for (char c : std::string("xEyENDz")) {
    SampledToken token;
    token.token = c;
    auto fed = writer->Feed(token);
    for (auto& event : fed.events) streamed += event["choices"][0]["delta"]["content"].get<std::string>();
    if ((stopped = fed.stopped)) break;
  }
  EXPECT_TRUE(stopped);
  EXPECT_EQ(streamed, "xEy");
  EXPECT_EQ(writer->End(false).back()["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(writer->Choice()["message"]["content"], "xEy");
}

TEST(FakeTextModelTest, NamesWhatItRefuses) {
  auto model = CreateFakeTextModel({});
  for (auto [body, param] : {std::pair{R"({"prompt":"a","what":1})", "what"}, std::pair{R"({"prompt":[512]})", "prompt"},
                             std::pair{R"({"prompt":"a","n":0})", "n"}, std::pair{R"({"prompt":"a","stream":"yes"})", "stream"}}) {
    auto parsed = model->Parse(ApiKind::kCompletion, body, 4096);
    ASSERT_TRUE(std::holds_alternative<ApiError>(parsed)) << body;
    EXPECT_EQ(std::get<ApiError>(parsed).param, param) << body;
  }
  auto parsed = model->Parse(ApiKind::kCompletion, R"({"prompt":"abcdef"})", 6);
  EXPECT_EQ(std::get<ApiError>(parsed).code, "context_length_exceeded");
  EXPECT_EQ(std::get<ApiError>(parsed).ToJson()["error"]["n_prompt_tokens"], 6);
}

}  // namespace
}  // namespace meshnet
