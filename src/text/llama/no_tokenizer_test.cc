// Models without a tokenizer, as llama.cpp's test architectures: token ids in, token ids out, everything about text a typed refusal.
#include <gtest/gtest.h>

#include "text/llama/text_bed.h"
#include "tiny/test_folder.h"
#include "tiny/tiny_model.h"

namespace meshnet::text {
namespace {

class NoTokenizerTest : public testing::Test {
 protected:
  void SetUp() override {
    tiny::TinyModelOptions tiny;
    tiny.vocabulary = 64;
    ASSERT_TRUE(tiny::WriteTinyModel(tiny, folder_.File("tiny.gguf")).ok());
    TextModelOptions options;
    options.vocab_path = folder_.File("tiny.gguf");
    auto created = CreateLlamaTextModel(options);
    ASSERT_TRUE(created.ok()) << created.status().message();
    model_ = std::move(created).value();
  }

  tiny::TestFolder folder_;
  std::unique_ptr<TextModel> model_;
};

TEST_F(NoTokenizerTest, TokenIdsWork) {
  EXPECT_FALSE(model_->has_tokenizer());
  EXPECT_EQ(model_->vocabulary_size(), 64u);
  EXPECT_EQ(model_->training_context(), 1024u);
  auto request = MustParse(*model_, ApiKind::kCompletion, R"({"prompt":[1,2,3],"return_tokens":true,"stop":"x","logit_bias":{"5":-100},"ignore_eos":true,"logprobs":2})");
  ASSERT_NE(request, nullptr);
  EXPECT_EQ(request->choices[0].prompt, (std::vector<Token>{1, 2, 3}));
  EXPECT_EQ(request->choices[0].sampling.logit_bias, (std::vector<LogitBias>{{5, -100}}));
  const Transcript t = Force(*model_, *request, Sampled({7, 8, 63}), Ending::kCut);
  EXPECT_EQ(t.content, "");
  EXPECT_EQ(t.choice["tokens"].dump(), "[7,8,63]");
  EXPECT_EQ(t.finish_reason, "length");
  EXPECT_EQ(t.choice["logprobs"]["content"].size(), 3u);
  // The engine may know an end that this vocabulary does not.
  SampledToken last;
  last.token = 5;
  last.end_of_generation = true;
  EXPECT_TRUE(request->NewWriter(0)->Feed(last).stopped);
}

TEST_F(NoTokenizerTest, TextIsRefused) {
  const std::pair<ApiKind, std::string> bodies[] = {
      {ApiKind::kChat, R"({"messages":[{"role":"user","content":"hi"}]})"},
      {ApiKind::kCompletion, R"({"prompt":"hi"})"},
      {ApiKind::kCompletion, R"({"prompt":[1,"hi"]})"},
      {ApiKind::kCompletion, R"({"prompt":[1],"grammar":"root ::= \"a\""})"},
      {ApiKind::kCompletion, R"({"prompt":[1],"json_schema":{"type":"null"}})"},
      {ApiKind::kCompletion, R"({"prompt":[1],"logit_bias":{"hello":1}})"},
  };
  for (const auto& [kind, body] : bodies) {
    const ApiError error = MustRefuse(*model_, kind, body);
    EXPECT_EQ(error.status, 501) << body;
    EXPECT_EQ(error.code, "no_tokenizer");
  }
  EXPECT_EQ(MustRefuse(*model_, ApiKind::kCompletion, R"({"prompt":[64]})").status, 400);
  for (const auto& result : {model_->Tokenize(R"({"content":"a"})"), model_->Detokenize(R"({"tokens":[1]})"), model_->ApplyTemplate(R"({"messages":[]})")}) {
    ASSERT_TRUE(std::holds_alternative<ApiError>(result));
    EXPECT_EQ(std::get<ApiError>(result).status, 501);
  }
  EXPECT_TRUE(model_->TokenizeText("hello").empty());
  EXPECT_EQ(model_->Piece(3), "");
  EXPECT_FALSE(model_->IsEndOfGeneration(3));
  EXPECT_TRUE(model_->Props().is_object());
}

// The whole model, its head shard, or a vocabulary alone: the same reader.
TEST(TinyTextModelTest, ReadsAWholeModelWithItsTemplate) {
  tiny::TestFolder folder;
  ASSERT_TRUE(tiny::WriteTinyModel(tiny::TextModelOptions(), folder.File("text.gguf")).ok());
  TextModelOptions options;
  options.vocab_path = folder.File("text.gguf");
  auto created = CreateLlamaTextModel(options);
  ASSERT_TRUE(created.ok()) << created.status().message();
  auto request = MustParse(**created, ApiKind::kChat, R"({"messages":[{"role":"user","content":"hi"}]})");
  ASSERT_NE(request, nullptr);
  EXPECT_GT(request->choices[0].prompt.size(), 3u);
}

}  // namespace
}  // namespace meshnet::text
