// The Engine on one loaded shard: one bounded llama.cpp context, one sequence per session. Keeps the token log of each sequence, from which
// the tail's sampler is rebuilt.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/engine_options.h"
#include "engine/llama/core_binding.h"
#include "engine/llama/engine_settings.h"
#include "engine/llama/llama_batch_builder.h"
#include "engine/llama/llama_boundary_capture.h"
#include "engine/llama/llama_graph_look.h"
#include "engine/llama/llama_handles.h"
#include "engine/llama/llama_sampler.h"
#include "engine/llama/llama_sequence_cells.h"

namespace meshnet {

// For tests: true ends the llama_decode that is running, as a failed computation would.
struct EngineFaultHook {
  bool (*abort)(void* data) = nullptr;
  void* data = nullptr;
};

// Everything an engine is made of; built by llama_shard_engine.cc.
struct LlamaEngineParts {
  EngineInfo info;
  EngineSettings settings;
  uint32_t positions_per_row = 1;
  // Destroyed in reverse order: the context calls the capture and borrows the model.
  LlamaModelPtr model;
  std::unique_ptr<LlamaBoundaryCapture> capture;  // null on the tail
  LlamaContextPtr context;
  LlamaGraphLook graph;
};

class LlamaEngine : public Engine {
 public:
  explicit LlamaEngine(LlamaEngineParts parts);

  const EngineInfo& info() const override { return parts_.info; }
  EngineMemory memory() const override;
  std::vector<EngineOutcome> Run(std::span<const EngineStep> steps) override;
  [[nodiscard]] bool Truncate(SequenceId sequence, PastLen keep) override;
  void Remove(SequenceId sequence) override;
  PastLen past_len(SequenceId sequence) const override;
  PastLen intact_from(SequenceId sequence) const override;
  Status CheckSampling(const SamplingParams& params) const override;

  // How often two sequences changed places in llama.cpp, so that a call needs fewer passes over the weights. For tests.
  uint64_t lane_exchanges() const { return cells_.exchanges(); }
  // For tests: where llama.cpp itself has a sequence.
  const LlamaEngineParts& parts() const { return parts_; }
  llama_seq_id lane(SequenceId sequence) const { return cells_.lane(sequence); }

 private:
  struct Sequence {
    std::vector<Token> log;
    std::unique_ptr<TailSampler> sampler;
    std::string lost;  // why only Remove helps; empty while sound
  };
  enum class Decoded { kDone, kUntouched, kBroken };

  bool tail() const { return !parts_.capture; }
  Sequence& At(SequenceId sequence);
  const Sequence& At(SequenceId sequence) const;
  void CheckCall(std::span<const EngineStep> steps) const;

  // What can be known before llama.cpp runs; also appends the step's tokens to the log when nothing is wrong.
  bool Admit(const EngineStep& step, EngineOutcome& outcome);
  Status PrepareSampler(const EngineStep& step);
  // Before several sequences are computed together: as few passes over the weights as possible. Some may come out lost, with their outcomes.
  void BringTogether(std::span<const EngineStep> steps, std::vector<size_t>& indices, std::vector<EngineOutcome>& outcomes);
  // `indices` into steps and outcomes, of admitted steps.
  void RunTogether(std::span<const EngineStep> steps, std::span<const size_t> indices, std::vector<EngineOutcome>& outcomes);
  void RunEach(std::span<const EngineStep> steps, std::span<const size_t> indices, std::vector<EngineOutcome>& outcomes);
  Decoded Decode(std::span<const EngineStep> steps, std::string& cause);
  uint32_t FlaggedRows(const EngineStep& step) const;

  // Takes what the step produced out of `first_row` onwards; false when a row is not finite.
  bool Collect(const EngineStep& step, std::span<const float> captured, uint32_t first_row, EngineOutcome& outcome);
  void Sample(const EngineStep& step, uint32_t first_row, EngineOutcome& outcome);
  // The sequence back to the step's start, in log, cells and sampler. False: it is lost.
  bool RollBack(const EngineStep& step, const std::string& cause);
  bool exact_window() const;
  void Lose(SequenceId sequence, const std::string& cause);
  void ScrubMemory();

  LlamaEngineParts parts_;
  LlamaBatchBuilder batch_builder_;
  LlamaSequenceCells cells_;
  CoreBinding binding_;
  std::vector<Sequence> sequences_;
  mutable std::unique_ptr<TailSampler> checked_sampler_;  // what the last CheckSampling set up: the step that brought it is next to need one
  std::vector<float> captured_;
  uint64_t weight_bytes_ = 0;
  uint64_t kv_token_bytes_ = 0;
  uint32_t flagged_rows_most_ = 0;
  bool scrub_is_complete_ = false;
};

}  // namespace meshnet
