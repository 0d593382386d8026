// Removes cells of one sequence and proves what is left; exchanges the lanes of two. The only place that calls llama_memory_seq_rm: a negative
// id there means every sequence, and its "true" proves nothing (docs/engine.md, L1 and L3).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "engine/llama/lane_table.h"
#include "llama.h"
#include "protocol/describe.h"

namespace meshnet {

class LlamaSequenceCells {
 public:
  // The context must outlive this object; `window_tokens` is 0 unless the class is kWindow.
  LlamaSequenceCells(llama_context* context, TruncationClass truncation_class, uint32_t window_tokens);

  // Cuts to [0, keep). False: what the next position needs is not proven to be there; the caller removes the sequence.
  [[nodiscard]] bool CutTo(SequenceId sequence, PastLen keep) const;
  // Nothing is left afterwards.
  void Clear(SequenceId sequence) const;
  // Whether [0, past) is there, as far as position `past` can see.
  bool Holds(SequenceId sequence, PastLen past) const;
  PastLen intact_from(SequenceId sequence) const;

  // What llama.cpp calls the sequence now.
  llama_seq_id lane(SequenceId sequence) const;
  // Puts sequences that are about to be computed together on neighbouring lanes when that pays; see LaneTable::Plan. `held` says how many tokens
  // each sequence of the context holds. Returns those whose cells did not arrive as they were: they are empty now.
  std::vector<SequenceId> BringTogether(std::span<const SequenceId> sequences, uint64_t weight_bytes, uint64_t token_bytes,
                                        std::span<const PastLen> held);
  uint64_t exchanges() const { return exchanges_; }

 private:
  bool Exchange(SequenceId a, PastLen past_a, SequenceId b, PastLen past_b);

  llama_context* context_;
  llama_memory_t memory_;
  TruncationClass truncation_class_;
  llama_pos window_tokens_;
  LaneTable lanes_;
  uint64_t exchanges_ = 0;
};

}  // namespace meshnet
