#include "engine/llama/llama_sequence_cells.h"

#include <algorithm>
#include <new>

#include "base/check.h"

namespace meshnet {

LlamaSequenceCells::LlamaSequenceCells(llama_context* context, TruncationClass truncation_class, uint32_t window_tokens)
    : context_(context),
      memory_(llama_get_memory(context)),
      truncation_class_(truncation_class),
      window_tokens_(static_cast<llama_pos>(window_tokens)),
      lanes_(llama_n_seq_max(context)) {}

llama_seq_id LlamaSequenceCells::lane(SequenceId sequence) const { return lanes_.lane(sequence); }

bool LlamaSequenceCells::CutTo(SequenceId sequence, PastLen keep) const {
  const llama_seq_id id = lane(sequence);
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
  const llama_seq_id id = lane(sequence);
  llama_memory_seq_rm(memory_, id, -1, -1);
  MESHNET_CHECK(llama_memory_seq_pos_max(memory_, id) == -1);
}

bool LlamaSequenceCells::Holds(SequenceId sequence, PastLen past) const {
  const llama_seq_id id = lane(sequence);
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
  const llama_seq_id id = lane(sequence);
  if (truncation_class_ == TruncationClass::kWhole) return PastLen(0);
  return PastLen(static_cast<uint32_t>(std::max(0, llama_memory_seq_pos_min(memory_, id))));
}

std::vector<SequenceId> LlamaSequenceCells::BringTogether(std::span<const SequenceId> sequences, uint64_t weight_bytes, uint64_t token_bytes,
                                                          std::span<const PastLen> held) {
  std::vector<SequenceId> broken;
  const auto past = [&](SequenceId sequence) { return held[static_cast<size_t>(sequence.value)]; };
  const LaneTable::ExchangeCost cost = [&](SequenceId a, SequenceId b) {
    return 4 * token_bytes * (uint64_t{past(a).value} + past(b).value);  // out and in, each read and written
  };
  for (const auto& [a, b] : lanes_.Plan(sequences, weight_bytes, cost)) {
    if (Exchange(a, past(a), b, past(b))) continue;
    for (SequenceId sequence : {a, b}) {
      if (past(sequence) > PastLen(0)) broken.push_back(sequence);
    }
  }
  return broken;
}

// Through memory of ours: llama.cpp's own copy between streams needs a lane that is free.
bool LlamaSequenceCells::Exchange(SequenceId a, PastLen past_a, SequenceId b, PastLen past_b) {
  const auto take = [&](SequenceId sequence, PastLen past, std::vector<uint8_t>* state) {
    if (past.value == 0) return true;
    try {
      state->resize(llama_state_seq_get_size(context_, lane(sequence)));
    } catch (const std::bad_alloc&) {
      return false;
    }
    return llama_state_seq_get_data(context_, state->data(), state->size(), lane(sequence)) == state->size();
  };
  const auto put = [&](SequenceId sequence, PastLen past, const std::vector<uint8_t>& state) {
    return past.value == 0 || (llama_state_seq_set_data(context_, state.data(), state.size(), lane(sequence)) == state.size() && Holds(sequence, past));
  };
  std::vector<uint8_t> state_a, state_b;
  if (!take(a, past_a, &state_a) || !take(b, past_b, &state_b)) return true;  // for want of memory: both stay where they are
  Clear(a);
  Clear(b);
  lanes_.Exchanged(a, b);
  ++exchanges_;
  if (put(a, past_a, state_a) && put(b, past_b, state_b)) return true;
  Clear(a);
  Clear(b);
  return false;
}

}  // namespace meshnet
