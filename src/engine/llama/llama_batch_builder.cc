#include "engine/llama/llama_batch_builder.h"

#include "base/check.h"

namespace meshnet {

LlamaBatchBuilder::LlamaBatchBuilder(uint32_t boundary_width, uint32_t positions_per_row)
    : boundary_width_(boundary_width), positions_per_row_(positions_per_row) {}

llama_batch LlamaBatchBuilder::Build(std::span<const EngineStep> steps, std::span<const uint32_t> flagged) {
  MESHNET_CHECK(!steps.empty() && steps.size() == flagged.size());
  const bool hidden = steps.front().input != nullptr;
  size_t rows = 0;
  for (const EngineStep& step : steps) rows += step.tokens.size();
  const uint32_t planes = hidden ? positions_per_row_ : 1;

  tokens_.clear();
  hidden_.clear();
  outputs_.clear();
  sequences_.clear();
  positions_.assign(rows * planes, 0);
  sequence_counts_.assign(rows, 1);
  size_t row = 0;
  for (size_t i = 0; i < steps.size(); ++i) {
    const EngineStep& step = steps[i];
    const size_t count = step.tokens.size();
    MESHNET_CHECK((step.input != nullptr) == hidden && flagged[i] <= count);
    if (hidden) {
      MESHNET_CHECK(step.input->rows() == count && step.input->width() == boundary_width_);
      hidden_.insert(hidden_.end(), step.input->values().begin(), step.input->values().end());
    } else {
      tokens_.insert(tokens_.end(), step.tokens.begin(), step.tokens.end());
    }
    for (size_t k = 0; k < count; ++k, ++row) {
      const auto position = static_cast<llama_pos>(step.start.value + k);
      for (uint32_t plane = 0; plane < planes && plane < 3; ++plane) positions_[plane * rows + row] = position;
      sequences_.push_back(step.sequence.value);
      outputs_.push_back(k + flagged[i] >= count ? 1 : 0);
    }
  }
  sequence_pointers_.resize(rows);
  for (size_t k = 0; k < rows; ++k) sequence_pointers_[k] = &sequences_[k];

  llama_batch batch = {};
  batch.n_tokens = static_cast<int32_t>(rows);
  batch.token = hidden ? nullptr : tokens_.data();
  batch.embd = hidden ? hidden_.data() : nullptr;
  batch.pos = positions_.data();
  batch.n_seq_id = sequence_counts_.data();
  batch.seq_id = sequence_pointers_.data();
  batch.logits = outputs_.data();
  return batch;
}

}  // namespace meshnet
