// A model cut into shards whose engines live in this process, and what a gateway would do with them, without wire and scheduler.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "engine/engine_options.h"
#include "protocol/sampling_params.h"

namespace meshnet::parity {

// What one session does in a call to all stages.
struct RouteStep {
  SequenceId sequence{0};
  std::vector<Token> tokens;
  const SamplingParams* sampling = nullptr;
  bool logits_wanted = true;  // of all rows
};

class SplitRoute {
 public:
  // Writes the shards under `folder`. `cuts` {7,14} means [0,7) [7,14) [14,n); none: the whole model in one engine.
  static Result<SplitRoute> Create(const std::string& model_path, const std::vector<uint32_t>& cuts, const EngineOptions& options,
                                   const std::string& folder);

  // Appends each step at its sequence's past length on every stage. kFailure names the stage and its cause.
  Result<std::vector<EngineOutcome>> Run(const std::vector<RouteStep>& steps);
  Result<EngineOutcome> Run(RouteStep step);
  // In chunks of `chunk` tokens; the logits of all rows, one after the other.
  Result<std::vector<float>> Prefill(SequenceId sequence, std::span<const Token> tokens, uint32_t chunk);

  bool Truncate(SequenceId sequence, PastLen keep);
  void Remove(SequenceId sequence);

  size_t stage_count() const { return stages_.size(); }
  Engine& stage(size_t index) { return *stages_[index]; }
  Engine& tail() { return *stages_.back(); }

 private:
  std::vector<std::unique_ptr<Engine>> stages_;
};

// Token ids that depend on `seed` only, all below `vocabulary`.
std::vector<Token> RandomTokens(size_t count, uint32_t vocabulary, uint64_t seed);

}  // namespace meshnet::parity
