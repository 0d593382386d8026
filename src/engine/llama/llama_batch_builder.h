// Lays out one engine call as a llama_batch. llama.cpp aborts on a malformed one, so the layout is checked here.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "llama.h"

namespace meshnet {

// Reused from call to call, so a decode step allocates nothing.
class LlamaBatchBuilder {
 public:
  // `positions_per_row` is 4 for M-RoPE models fed with hidden states: [p..][p..][p..][0..].
  LlamaBatchBuilder(uint32_t boundary_width, uint32_t positions_per_row);

  // `flagged` rows, counted from each step's end, become outputs: one number per step. The result borrows from the builder and is valid until
  // the next call.
  llama_batch Build(std::span<const EngineStep> steps, std::span<const uint32_t> flagged);

 private:
  uint32_t boundary_width_;
  uint32_t positions_per_row_;
  std::vector<llama_token> tokens_;
  std::vector<float> hidden_;
  std::vector<llama_pos> positions_;
  std::vector<int32_t> sequence_counts_;
  std::vector<llama_seq_id> sequences_;
  std::vector<llama_seq_id*> sequence_pointers_;
  std::vector<int8_t> outputs_;
};

}  // namespace meshnet
