// Removes cells of one sequence and proves what is left. The only place that calls llama_memory_seq_rm: a negative id there means every
// sequence, and its "true" proves nothing (docs/engine.md, L1 and L3).
#pragma once

#include <cstdint>

#include "base/ids.h"
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

 private:
  llama_seq_id Checked(SequenceId sequence) const;

  llama_context* context_;
  llama_memory_t memory_;
  TruncationClass truncation_class_;
  llama_pos window_tokens_;
};

}  // namespace meshnet
