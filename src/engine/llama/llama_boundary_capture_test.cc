#include "engine/llama/llama_boundary_capture.h"

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "engine/llama/engine_settings.h"
#include "engine/llama/llama_batch_builder.h"
#include "engine/llama/llama_model_load.h"
#include "gtest/gtest.h"
#include "tiny/test_folder.h"
#include "tiny/tiny_model.h"

namespace meshnet {
namespace {

// A graph that stops in the middle of a model with a vocabulary: the boundary is all that leaves llama.cpp.
TEST(LlamaBoundaryCaptureTest, NoLogitsAreCopiedAfterAGraphThatStoppedBefore) {
  tiny::TestFolder folder;
  const std::string path = folder.File("model.gguf");
  tiny::TinyModelOptions options;
  options.architecture = "llama";
  options.layers = 6;
  ASSERT_TRUE(tiny::WriteTinyModel(options, path).ok());
  const EngineSettings settings = *ResolveSettings(EngineOptions(), OutputRows::kAll, 1);
  const LlamaModelPtr model = *LoadLlamaModel(path, settings);
  const auto width = static_cast<uint32_t>(llama_model_n_embd(model.get()));
  LlamaBoundaryCapture capture("l_out-2", width);
  ContextCallbacks callbacks;
  callbacks.on_tensor = LlamaBoundaryCapture::OnTensor;
  callbacks.on_tensor_data = &capture;
  const LlamaContextPtr context = *CreateLlamaContext(model.get(), settings, callbacks);

  const std::vector<Token> tokens = {3, 1, 4, 1, 5, 9, 2, 6};
  const auto rows = static_cast<uint32_t>(tokens.size());
  LlamaBatchBuilder builder(64, 1);
  auto run = [&](uint32_t start, uint32_t count) {
    const EngineStep step = {.sequence = SequenceId(0), .start = PastLen(start), .tokens = std::span(tokens).first(count)};
    capture.Begin(count);
    EXPECT_EQ(llama_decode(context.get(), builder.Build({&step, 1}, {&count, 1})), 0);
    return capture.Take();
  };
  EXPECT_EQ(run(0, 1).size(), width);
  EXPECT_EQ(run(1, rows).size(), size_t{rows} * width);  // needs larger buffers than before
  constexpr float kMark = 42.0f;
  const std::span logits(llama_get_logits(context.get()), size_t{rows} * static_cast<size_t>(llama_vocab_n_tokens(llama_model_get_vocab(model.get()))));
  std::ranges::fill(logits, kMark);
  const std::vector<float> boundary = run(1 + rows, rows);
  ASSERT_EQ(boundary.size(), size_t{rows} * width);
  EXPECT_TRUE(std::ranges::any_of(boundary, [](float value) { return value != 0.0f; }));
  EXPECT_TRUE(std::ranges::all_of(logits, [](float value) { return value == kMark; }));
}

}  // namespace
}  // namespace meshnet
