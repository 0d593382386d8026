// For tests: a tiny model, whole, in one engine, and short ways to feed it.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/llama/llama_engine_create.h"
#include "gtest/gtest.h"
#include "tiny/test_folder.h"
#include "tiny/tiny_model.h"

namespace meshnet {

class TestEngine {
 public:
  static EngineOptions SmallOptions() {
    EngineOptions options;
    options.threads = 1;
    options.sessions_max = 4;
    options.context_tokens = 256;
    options.budget_tokens = 1024;
    options.ubatch_tokens = 64;
    return options;
  }

  explicit TestEngine(const tiny::TinyModelOptions& model = {}, EngineOptions options = SmallOptions()) {
    const Status written = tiny::WriteTinyModel(model, path());
    EXPECT_TRUE(written.ok()) << written.message();
    Open(options);
  }

  // Without an engine yet: for tests that change the file first.
  struct FileOnly {};
  TestEngine(FileOnly, const tiny::TinyModelOptions& model) { EXPECT_TRUE(tiny::WriteTinyModel(model, path()).ok()); }

  void Open(EngineOptions options) {
    options.shard_path = path();
    engine_.reset();
    Result<std::unique_ptr<LlamaEngine>> engine = CreateLlamaEngine(options, {.abort = Abort, .data = this});
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    engine_ = std::move(*engine);
  }

  std::string path() const { return folder_.File("model.gguf"); }
  LlamaEngine& operator*() { return *engine_; }
  LlamaEngine* operator->() { return engine_.get(); }

  // The next llama_decode fails in the middle.
  void BreakNextDecode() { break_next_ = true; }

  EngineOutcome Feed(int32_t sequence, std::vector<Token> tokens, const SamplingParams* sampling = nullptr, bool logits_wanted = true) {
    const EngineStep step = {.sequence = SequenceId(sequence), .start = engine_->past_len(SequenceId(sequence)), .tokens = tokens,
                             .rows = RowsWanted::kAll, .logits_wanted = logits_wanted, .sampling = sampling};
    return std::move(engine_->Run({&step, 1}).front());
  }

  // One token for each of several sequences, in one call.
  std::vector<EngineOutcome> FeedTogether(const std::vector<std::pair<int32_t, Token>>& each) {
    std::vector<EngineStep> steps;
    for (const auto& [sequence, token] : each) {
      steps.push_back({.sequence = SequenceId(sequence), .start = engine_->past_len(SequenceId(sequence)), .tokens = {&token, 1},
                       .rows = RowsWanted::kAll, .logits_wanted = true});
    }
    return engine_->Run(steps);
  }

  PastLen past_len(int32_t sequence) const { return engine_->past_len(SequenceId(sequence)); }

 private:
  static bool Abort(void* self) { return std::exchange(static_cast<TestEngine*>(self)->break_next_, false); }

  tiny::TestFolder folder_;
  bool break_next_ = false;
  std::unique_ptr<LlamaEngine> engine_;
};

inline std::vector<float> ValuesOf(const EngineOutcome& outcome) {
  return {outcome.output.values().begin(), outcome.output.values().end()};
}

inline std::vector<float> LastRowOf(const EngineOutcome& outcome) {
  const std::span<const float> row = outcome.output.row(outcome.output.rows() - 1);
  return {row.begin(), row.end()};
}

}  // namespace meshnet
