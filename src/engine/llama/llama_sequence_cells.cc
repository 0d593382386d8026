#include "engine/llama/llama_sequence_cells.h"

#include <algorithm>

#include "base/check.h"

namespace meshnet {

LlamaSequenceCells::LlamaSequenceCells(llama_context* context, TruncationClass truncation_class, uint32_t window_tokens)
    : context_(context),
      memory_(llama_get_memory(context)),
      truncation_class_(truncation_class),
      window_tokens_(static_cast<llama_pos>(window_tokens)) {}

llama_seq_id LlamaSequenceCells::Checked(SequenceId sequence) const {
  MESHNET_CHECK(sequence.value >= 0 && static_cast<uint32_t>(sequence.value) < llama_n_seq_max(context_));
  return sequence.value;
}

bool LlamaSequenceCells::CutTo(SequenceId sequence, PastLen keep) const {
  const llama_seq_id id = Checked(sequence);
  if (Holds(sequence, keep)) return true;
  if (keep.value == 0) {
    Clear(sequence);
    return true;
  }
  // Recurrent state cannot go back, and asking would leave attention and state at different positions.
  if (truncation_class_ == TruncationClass::kWhole) return false;
  return llama_memory_seq_rm(memory_, id, static_cast<llama_pos>(keep.value), -1) && Holds(sequence, keep);
}

void LlamaSequenceCells::Clear(SequenceId sequence) const {
  const llama_seq_id id = Checked(sequence);
  llama_memory_seq_rm(memory_, id, -1, -1);
  MESHNET_CHECK(llama_memory_seq_pos_max(memory_, id) == -1);
}

bool LlamaSequenceCells::Holds(SequenceId sequence, PastLen past) const {
  const llama_seq_id id = Checked(sequence);
  const auto end = static_cast<llama_pos>(past.value);
  if (llama_memory_seq_pos_max(memory_, id) != end - 1) return false;
  const llama_pos first = llama_memory_seq_pos_min(memory_, id);
  switch (truncation_class_) {
    case TruncationClass::kWhole: return true;
    case TruncationClass::kFull: return end == 0 || first == 0;
    case TruncationClass::kWindow: return end == 0 || first == 0 || first <= end - window_tokens_;
  }
  return false;
}

PastLen LlamaSequenceCells::intact_from(SequenceId sequence) const {
  const llama_seq_id id = Checked(sequence);
  if (truncation_class_ == TruncationClass::kWhole) return PastLen(0);
  return PastLen(static_cast<uint32_t>(std::max(0, llama_memory_seq_pos_min(memory_, id))));
}

}  // namespace meshnet
