// Opt-in: a real model answers under the constraints that requests put on it, and what the writer shows holds to them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "common.h"
#include "llama.h"
#include "sampling.h"
#include "text/llama/text_bed.h"

namespace meshnet::text {
namespace {

using nlohmann::ordered_json;

// A for a capital letter, 9 for a digit, anything else for itself. (std::regex does not compile under g++ 12's sanitizers.)
bool HasForm(const std::string& text, const std::string& form) {
  return text.size() == form.size() && std::equal(text.begin(), text.end(), form.begin(), [](char c, char wanted) {
           return wanted == 'A' ? c >= 'A' && c <= 'Z' : wanted == '9' ? c >= '0' && c <= '9' : c == wanted;
         });
}

std::string ModelPath() {
  if (const char* folder = std::getenv("MESHNET_MODEL_DIR")) return std::string(folder) + "/smollm2-135m.gguf";
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const std::string base = cache != nullptr && *cache != '\0' ? cache : std::string(home != nullptr ? home : "") + "/.cache";
  return base + "/meshnet/models/smollm2-135m.gguf";
}

// llama.cpp's own context and sampler, driven by our parameters.
class StockGenerator {
 public:
  explicit StockGenerator(const std::string& path) {
    model_ = llama_model_load_from_file(path.c_str(), llama_model_default_params());
    llama_context_params params = llama_context_default_params();
    params.n_ctx = 1024;
    context_ = llama_init_from_model(model_, params);
  }
  ~StockGenerator() {
    llama_free(context_);
    llama_model_free(model_);
  }

  std::vector<SampledToken> Generate(const ParsedRequest::Choice& choice, int count_max) {
    common_params_sampling sampling;
    sampling.seed = choice.sampling.seed;
    sampling.temp = choice.sampling.temperature;
    if (!choice.sampling.grammar.empty()) sampling.grammar = {static_cast<common_grammar_type>(choice.sampling.grammar_type), choice.sampling.grammar};
    sampling.generation_prompt = choice.sampling.generation_prompt;
    common_sampler_ptr sampler(common_sampler_init(model_, sampling));
    llama_memory_clear(llama_get_memory(context_), true);
    std::vector<Token> batch = choice.prompt;
    std::vector<SampledToken> tokens;
    for (int i = 0; i < count_max; ++i) {
      EXPECT_EQ(llama_decode(context_, llama_batch_get_one(batch.data(), static_cast<int32_t>(batch.size()))), 0);
      SampledToken sampled;
      sampled.token = common_sampler_sample(sampler.get(), context_, -1);
      common_sampler_accept(sampler.get(), sampled.token, true);
      sampled.end_of_generation = llama_vocab_is_eog(llama_model_get_vocab(model_), sampled.token);
      tokens.push_back(sampled);
      if (sampled.end_of_generation) break;
      batch = {sampled.token};
    }
    return tokens;
  }

 private:
  llama_model* model_ = nullptr;
  llama_context* context_ = nullptr;
};

TEST(LlamaRealModelTest, AnswersHoldToTheirSchema) {
  if (std::getenv("MESHNET_REAL_MODELS") == nullptr) GTEST_SKIP() << "needs a real model: scripts/model smollm2-135m, then MESHNET_REAL_MODELS=1";
  if (!std::filesystem::exists(ModelPath())) GTEST_SKIP() << "no smollm2-135m.gguf: scripts/model smollm2-135m";
  TextModelOptions options;
  options.vocab_path = ModelPath();
  auto created = CreateLlamaTextModel(options);
  ASSERT_TRUE(created.ok()) << created.status().message();
  const TextModel& model = **created;
  EXPECT_EQ(model.vocabulary_size(), 49152u);
  EXPECT_EQ(model.training_context(), 8192u);
  StockGenerator generator(ModelPath());

  const std::string schema =
      R"({"type":"object","properties":{"code":{"type":"string","pattern":"^[A-Z]{2}-\\d{3}$"},"mail":{"type":"string","pattern":"^\\w{1,8}@ex$"},"size":{"enum":["S","M","L"]},)"
      R"("count":{"type":"integer","minimum":3,"exclusiveMaximum":12},"day":{"type":"string","format":"date"},"tags":{"type":"array","items":{"type":["boolean","null"]},"minItems":2,"maxItems":3},)"
      R"("note":{"type":"string","maxLength":5}},"required":["code","mail","size","count","day","tags","note"],"additionalProperties":false})";
  int whole = 0;
  for (uint32_t seed = 0; seed < 3; ++seed) {
    auto request = MustParse(model, ApiKind::kChat,
                             R"({"messages":[{"role":"user","content":"Describe a shirt."}],"temperature":0.6,"seed":)" + std::to_string(seed) +
                                 R"(,"response_format":{"type":"json_schema","json_schema":{"name":"shirt","strict":true,"schema":)" + schema + "}}}", 1024);
    ASSERT_NE(request, nullptr);
    const std::vector<SampledToken> tokens = generator.Generate(request->choices[0], 150);
    const Transcript t = Force(model, *request, tokens, Ending::kCut);
    if (t.finish_reason == "length") continue;
    ++whole;
    ASSERT_TRUE(ordered_json::accept(t.content)) << t.content;
    const ordered_json answer = ordered_json::parse(t.content);
    EXPECT_TRUE(HasForm(answer["code"].get<std::string>(), "AA-999")) << t.content;
    EXPECT_NE(answer["mail"].get<std::string>().find("@ex"), std::string::npos) << t.content;
    EXPECT_TRUE(answer["size"] == "S" || answer["size"] == "M" || answer["size"] == "L");
    EXPECT_TRUE(answer["count"].get<int>() >= 3 && answer["count"].get<int>() < 12) << t.content;
    EXPECT_TRUE(HasForm(answer["day"].get<std::string>(), "9999-99-99"));
    EXPECT_TRUE(answer["tags"].size() >= 2 && answer["tags"].size() <= 3);
    EXPECT_LE(answer["note"].get<std::string>().size(), 20u);
    EXPECT_EQ(answer.size(), 7u);
  }
  EXPECT_GT(whole, 0);

  auto forced = MustParse(model, ApiKind::kChat, R"({"messages":[{"role":"user","content":"hi"}],"grammar":"root ::= \"Grüße 😀\""})", 1024);
  ASSERT_NE(forced, nullptr);
  EXPECT_EQ(Force(model, *forced, generator.Generate(forced->choices[0], 50), Ending::kCut).content, "Grüße 😀");
}

}  // namespace
}  // namespace meshnet::text
