// What lies in cells that nobody owns: it must be found, cleared when it is not finite, and never matter when it is.
#include "engine/llama/llama_memory_scrub.h"

#include <cmath>
#include <string>
#include <vector>

#include "engine/llama/engine_settings.h"
#include "engine/llama/llama_batch_builder.h"
#include "engine/llama/llama_graph_look.h"
#include "engine/llama/llama_memory_report.h"
#include "engine/llama/llama_model_load.h"
#include "ggml-backend.h"
#include "gtest/gtest.h"
#include "tiny/test_folder.h"
#include "tiny/tiny_model.h"

namespace meshnet {
namespace {

// A bare context on a tiny model.
class LoadedContext {
 public:
  LoadedContext(const std::string& architecture, const EngineOptions& options) {
    tiny::TinyModelOptions model;
    model.architecture = architecture;
    model.layers = 6;
    const std::string path = folder_.File("model.gguf");
    EXPECT_TRUE(tiny::WriteTinyModel(model, path).ok());
    const EngineSettings settings = *ResolveSettings(options, OutputRows::kFew, 1);
    model_ = *LoadLlamaModel(path, settings);
    context_ = *CreateLlamaContext(model_.get(), settings, ContextCallbacks());
    look_ = LookAtGraph(context_.get(), "l_out-5", 64);
  }

  llama_context* context() { return context_.get(); }
  const LlamaGraphLook& look() const { return look_; }

  std::vector<float> Decode(SequenceId sequence, uint32_t start, const std::vector<Token>& tokens) {
    LlamaBatchBuilder builder(64, 1);
    const EngineStep step = {.sequence = sequence, .start = PastLen(start), .tokens = tokens};
    const uint32_t flagged = 1;
    EXPECT_EQ(llama_decode(context_.get(), builder.Build({&step, 1}, {&flagged, 1})), 0);
    const float* logits = llama_get_logits_ith(context_.get(), static_cast<int32_t>(tokens.size()) - 1);
    return {logits, logits + llama_vocab_n_tokens(llama_model_get_vocab(model_.get()))};
  }

  // Every element of all KV tensors.
  void FillMemory(float value) {
    for (ggml_tensor* tensor : look_.memory) {
      const auto width = static_cast<size_t>(tensor->ne[0]);
      std::vector<float> row(width, value);
      std::vector<uint8_t> bytes(ggml_row_size(tensor->type, tensor->ne[0]));
      ggml_quantize_chunk(tensor->type, row.data(), bytes.data(), 0, 1, tensor->ne[0], nullptr);
      for (int64_t k = 0; k < ggml_nrows(tensor); ++k) ggml_backend_tensor_set(tensor, bytes.data(), static_cast<size_t>(k) * bytes.size(), bytes.size());
    }
  }

 private:
  tiny::TestFolder folder_;
  LlamaModelPtr model_;
  LlamaContextPtr context_;
  LlamaGraphLook look_;
};

EngineOptions Options() {
  EngineOptions options;
  options.threads = 1;
  options.sessions_max = 2;
  options.context_tokens = 256;
  options.budget_tokens = 512;
  options.ubatch_tokens = 128;
  return options;
}

std::vector<Token> Prompt(size_t count) {
  std::vector<Token> tokens(count);
  for (size_t i = 0; i < count; ++i) tokens[i] = static_cast<Token>(i * 31 % 256);
  return tokens;
}

TEST(LlamaMemoryScrubTest, AllMemoryAndTheBoundaryAreFoundForEveryTinyArchitecture) {
  for (const std::string& architecture : tiny::TinyArchitectures()) {
    for (uint32_t budget : {512u, 300u}) {
      EngineOptions options = Options();
      options.budget_tokens = budget;
      LoadedContext loaded(architecture, options);
      EXPECT_TRUE(loaded.look().has_boundary) << architecture;
      EXPECT_FALSE(loaded.look().memory.empty()) << architecture;
      EXPECT_TRUE(CoversAllMemory(loaded.context(), loaded.look().memory)) << architecture;
      std::vector<ggml_tensor*> fewer = loaded.look().memory;
      fewer.pop_back();
      EXPECT_FALSE(CoversAllMemory(loaded.context(), fewer)) << architecture;
    }
  }
}

struct Cells {
  std::string name;
  std::string kv_type;
  bool flash_attention;
  uint32_t budget_tokens;
};

class CellsTest : public testing::TestWithParam<Cells> {
 protected:
  static EngineOptions CellOptions() {
    EngineOptions options = Options();
    options.kv_type_k = options.kv_type_v = GetParam().kv_type;
    options.flash_attention = GetParam().flash_attention;
    options.budget_tokens = GetParam().budget_tokens;
    return options;
  }
};

TEST_P(CellsTest, LargeFiniteValuesInFreeCellsChangeNoBit) {
  for (const char* architecture : {"llama", "gemma3"}) {
    LoadedContext clean(architecture, CellOptions()), dirty(architecture, CellOptions());
    dirty.FillMemory(8192.0f);
    EXPECT_EQ(ScrubNonFinite(dirty.look().memory), 0u);
    EXPECT_EQ(dirty.Decode(SequenceId(1), 0, Prompt(100)), clean.Decode(SequenceId(1), 0, Prompt(100))) << architecture;
    EXPECT_EQ(dirty.Decode(SequenceId(1), 100, {7}), clean.Decode(SequenceId(1), 100, {7})) << architecture;
  }
}

TEST_P(CellsTest, WhatIsNotFiniteIsClearedAndTheRestKept) {
  LoadedContext clean("llama", CellOptions()), poisoned("llama", CellOptions());
  poisoned.FillMemory(INFINITY);
  EXPECT_GT(ScrubNonFinite(poisoned.look().memory), 0u);
  EXPECT_EQ(ScrubNonFinite(poisoned.look().memory), 0u);
  EXPECT_EQ(poisoned.Decode(SequenceId(0), 0, Prompt(100)), clean.Decode(SequenceId(0), 0, Prompt(100)));
  // Another scrub in the middle of a session takes nothing from it.
  EXPECT_EQ(ScrubNonFinite(poisoned.look().memory), 0u);
  EXPECT_EQ(poisoned.Decode(SequenceId(0), 100, {7}), clean.Decode(SequenceId(0), 100, {7}));
}

INSTANTIATE_TEST_SUITE_P(Layouts, CellsTest,
                         testing::Values(Cells{"F16", "f16", true, 512}, Cells{"Bf16", "bf16", true, 512}, Cells{"Q8", "q8_0", true, 512},
                                         Cells{"F32", "f32", true, 512}, Cells{"F16Pool", "f16", true, 300},
                                         Cells{"F16PlainAttention", "f16", false, 512}, Cells{"F16PoolPlainAttention", "f16", false, 300}),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace meshnet
