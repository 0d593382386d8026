// What runs the layers of one shard: stock llama.cpp (engine/llama) or a fake whose KV is a rolling hash (fake_engine.h).
// One thread owns an engine and makes every call.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "protocol/describe.h"
#include "protocol/hidden_state.h"
#include "protocol/sampling_params.h"
#include "protocol/step.h"

namespace meshnet {

// One session's part of an engine call. Everything is borrowed for the call.
struct EngineStep {
  SequenceId sequence;
  PastLen start;                        // == past_len(sequence); the caller truncates first
  std::span<const Token> tokens;
  const HiddenState* input = nullptr;   // [tokens.size()][boundary width]; null on the head
  RowsWanted rows = RowsWanted::kAll;
  bool logits_wanted = false;
  const SamplingParams* sampling = nullptr;  // tail: sample the last row; null: do not
};

enum class EngineFate {
  kDone,
  kRolledBack,  // failed; the sequence holds exactly [0, start) again, proven
  kLost,        // failed and not proven, or a non-finite row: the caller removes the sequence
};

struct EngineOutcome {
  EngineFate fate = EngineFate::kDone;
  std::string cause;                    // a sentence, when not done
  bool asked_too_much = false;          // not done: what the step asks for leaves nothing to sample, so trying again is no help
  HiddenState output;                   // hidden rows before the tail; logits on the tail when asked
  std::vector<SampledToken> sampled;    // tail: one when `sampling` was given
};

struct EngineMemory {
  uint64_t weight_bytes = 0;
  uint64_t kv_bytes = 0;
  uint64_t compute_bytes = 0;
};

// Fixed for the engine's life.
struct EngineInfo {
  LayerRange range;
  uint32_t layer_count = 0;
  uint32_t boundary_width = 0;          // f32 values a row
  uint32_t vocabulary_size = 0;
  uint32_t sequences_max = 0;           // ids [0, sequences_max)
  uint32_t context_tokens = 0;          // cells one sequence really has
  uint32_t budget_tokens = 0;           // cells in all
  uint32_t chunk_rows_max = 0;          // tokens of one chunk == one micro-batch of llama.cpp
  TruncationClass truncation_class = TruncationClass::kFull;
  uint32_t window_tokens = 0;
  NumericsFingerprint numerics;
};

class Engine {
 public:
  virtual ~Engine() = default;

  virtual const EngineInfo& info() const = 0;
  virtual EngineMemory memory() const = 0;

  // One engine call: either single-token steps of distinct sequences in ascending order, or exactly one chunk of one sequence
  // (row order: docs/engine.md, Calls). One outcome per step, in the same order. A failure of a shared call is retried one by one,
  // so that only the guilty step fails.
  virtual std::vector<EngineOutcome> Run(std::span<const EngineStep> steps) = 0;

  // Keeps [0, keep) of one sequence. False: not proven, and the caller must remove the sequence.
  [[nodiscard]] virtual bool Truncate(SequenceId sequence, PastLen keep) = 0;
  // Forgets everything of one sequence, its sampler included; afterwards past_len is 0 and its cells hold nothing that can reach a
  // later owner (a sequence that produced non-finite values is cleared).
  virtual void Remove(SequenceId sequence) = 0;

  virtual PastLen past_len(SequenceId sequence) const = 0;
  // First position whose cells are intact: above 0 once a sliding window has recycled older ones.
  virtual PastLen intact_from(SequenceId sequence) const = 0;

  // Whether the tail could sample so, found out before any step runs. `params` have passed ValidateSampling, which reads and bounds the grammar;
  // this is the tail's own tokenizer and llama.cpp.
  virtual Status CheckSampling(const SamplingParams& params) const = 0;
};

}  // namespace meshnet
