#include "engine/llama/llama_engine.h"

#include <algorithm>
#include <exception>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "engine/llama/llama_library.h"
#include "engine/llama/llama_memory_report.h"
#include "engine/llama/llama_memory_scrub.h"

namespace meshnet {
namespace {

std::string Span(const EngineStep& step) {
  return "[" + std::to_string(step.start.value) + "," + std::to_string(step.start.value + step.tokens.size()) + ")";
}

EngineOutcome Failed(EngineFate fate, std::string cause) {
  EngineOutcome outcome;
  outcome.fate = fate;
  outcome.cause = std::move(cause);
  return outcome;
}

}  // namespace

LlamaEngine::LlamaEngine(LlamaEngineParts parts)
    : parts_(std::move(parts)),
      batch_builder_(parts_.info.boundary_width, parts_.positions_per_row),
      cells_(parts_.context.get(), parts_.info.truncation_class, parts_.info.window_tokens),
      binding_(parts_.settings.threads),
      sequences_(parts_.info.sequences_max),
      scrub_is_complete_(CoversAllMemory(parts_.context.get(), parts_.graph.memory)) {
  const EngineMemory memory = this->memory();
  weight_bytes_ = memory.weight_bytes;
  kv_token_bytes_ = memory.kv_bytes / std::max<uint32_t>(1, parts_.settings.cells);
}

EngineMemory LlamaEngine::memory() const { return ReportMemory(parts_.context.get(), flagged_rows_most_); }

LlamaEngine::Sequence& LlamaEngine::At(SequenceId sequence) {
  MESHNET_CHECK(sequence.value >= 0 && static_cast<size_t>(sequence.value) < sequences_.size());
  return sequences_[static_cast<size_t>(sequence.value)];
}

const LlamaEngine::Sequence& LlamaEngine::At(SequenceId sequence) const { return const_cast<LlamaEngine*>(this)->At(sequence); }

// A broken call is our own mistake, and llama.cpp would answer some of them with wrong KV.
void LlamaEngine::CheckCall(std::span<const EngineStep> steps) const {
  MESHNET_CHECK(!steps.empty());
  for (size_t i = 0; i < steps.size(); ++i) {
    const EngineStep& step = steps[i];
    MESHNET_CHECK(!step.tokens.empty() && step.tokens.size() <= info().chunk_rows_max);
    MESHNET_CHECK(steps.size() == 1 || step.tokens.size() == 1);
    MESHNET_CHECK(i == 0 || steps[i - 1].sequence < step.sequence);
    MESHNET_CHECK(!At(step.sequence).lost.empty() || step.start == past_len(step.sequence));
    MESHNET_CHECK((info().range.begin == 0) == (step.input == nullptr));
    MESHNET_CHECK(!step.input || (step.input->rows() == step.tokens.size() && step.input->width() == info().boundary_width));
    for (Token token : step.tokens) MESHNET_CHECK(token >= 0 && static_cast<uint32_t>(token) < info().vocabulary_size);
    MESHNET_CHECK(tail() || (!step.sampling && !step.logits_wanted));
  }
}

std::vector<EngineOutcome> LlamaEngine::Run(std::span<const EngineStep> steps) {
  CheckCall(steps);
  std::vector<EngineOutcome> outcomes(steps.size());
  std::vector<size_t> admitted;
  for (size_t i = 0; i < steps.size(); ++i) {
    if (Admit(steps[i], outcomes[i])) admitted.push_back(i);
  }
  if (admitted.size() > 1) BringTogether(steps, admitted, outcomes);
  if (!admitted.empty()) RunTogether(steps, admitted, outcomes);
  return outcomes;
}

bool LlamaEngine::Admit(const EngineStep& step, EngineOutcome& outcome) {
  Sequence& sequence = At(step.sequence);
  if (!sequence.lost.empty()) {
    outcome = Failed(EngineFate::kLost, sequence.lost);
    return false;
  }
  if (step.start.value + step.tokens.size() > info().context_tokens) {
    outcome = Failed(EngineFate::kRolledBack, "positions " + Span(step) + " pass the context of " + std::to_string(info().context_tokens) + " tokens");
    return false;
  }
  if (FlaggedRows(step) > parts_.settings.output_rows) {
    outcome = Failed(EngineFate::kRolledBack, std::to_string(step.tokens.size()) + " rows of logits are wanted at once; at most " +
                                                  std::to_string(parts_.settings.output_rows) + " are given");
    return false;
  }
  if (step.input && !step.input->all_finite()) {
    outcome = Failed(EngineFate::kRolledBack, "an input row of positions " + Span(step) + " is not finite");
    return false;
  }
  sequence.log.insert(sequence.log.end(), step.tokens.begin(), step.tokens.end());
  const Status prepared = PrepareSampler(step);
  if (prepared.ok()) return true;
  sequence.log.resize(step.start.value);
  sequence.sampler.reset();
  outcome = Failed(EngineFate::kRolledBack, prepared.message());
  return false;
}

// Before llama.cpp computes anything, so that a token that does not fit the grammar costs nothing.
Status LlamaEngine::PrepareSampler(const EngineStep& step) {
  if (!step.sampling) return OkStatus();
  Sequence& sequence = At(step.sequence);
  if (sequence.sampler && !(sequence.sampler->params() == *step.sampling)) sequence.sampler.reset();
  if (!sequence.sampler) {
    if (!checked_sampler_ || !(checked_sampler_->params() == *step.sampling)) {
      if (Status status = CheckSampling(*step.sampling); !status.ok()) return status;
    }
    sequence.sampler = std::move(checked_sampler_);
  }
  return sequence.sampler->Accept(sequence.log);
}

// All rows leave a stage before the tail. On the tail the last row is always looked at: it attends to everything, so a value that is not
// finite shows in it even when nobody asked for a row.
uint32_t LlamaEngine::FlaggedRows(const EngineStep& step) const {
  const auto all = static_cast<uint32_t>(step.tokens.size());
  return !tail() || (step.logits_wanted && step.rows == RowsWanted::kAll) ? all : 1;
}

LlamaEngine::Decoded LlamaEngine::Decode(std::span<const EngineStep> steps, std::string& cause) {
  std::vector<uint32_t> flagged;
  uint32_t rows = 0;
  for (const EngineStep& step : steps) {
    flagged.push_back(FlaggedRows(step));
    rows += static_cast<uint32_t>(step.tokens.size());
  }
  flagged_rows_most_ = std::max(flagged_rows_most_, std::accumulate(flagged.begin(), flagged.end(), 0u));
  const llama_batch batch = batch_builder_.Build(steps, flagged);
  MESHNET_CHECK(static_cast<uint32_t>(batch.n_tokens) <= llama_n_batch(parts_.context.get()));
  if (parts_.capture) parts_.capture->Begin(rows);
  TakeLlamaComplaint();
  int32_t code = -100;
  binding_.Before();
  try {
    code = llama_decode(parts_.context.get(), batch);
    llama_synchronize(parts_.context.get());
  } catch (const std::exception&) {
    code = -100;
  }
  binding_.After();
  if (code == 0 && parts_.capture) {
    captured_ = parts_.capture->Take();
    if (captured_.empty()) {
      cause = "the rows of " + parts_.capture->tensor() + " did not come out of the graph";
      return Decoded::kBroken;
    }
  }
  if (code == 0) return Decoded::kDone;
  const std::string complaint = TakeLlamaComplaint();
  cause = code == 1 ? "no free cells in the KV cache" : "llama_decode failed with code " + std::to_string(code);
  if (!complaint.empty()) cause += " (llama.cpp: " + complaint + ")";
  // Only these two leave memory as it was (docs/engine.md, L2).
  return code == 1 || code == -1 ? Decoded::kUntouched : Decoded::kBroken;
}

void LlamaEngine::RunEach(std::span<const EngineStep> steps, std::span<const size_t> indices, std::vector<EngineOutcome>& outcomes) {
  for (size_t index : indices) RunTogether(steps, {&index, 1}, outcomes);
}

// Cells of windows keep their order in a ring, and what a recurrent state is made of is llama.cpp's own: only plain cells change their lane.
void LlamaEngine::BringTogether(std::span<const EngineStep> steps, std::vector<size_t>& indices, std::vector<EngineOutcome>& outcomes) {
  if (parts_.settings.partitioned && info().truncation_class == TruncationClass::kFull) {
    std::vector<PastLen> held;  // in cells: the logs of admitted steps run ahead of them, and of a lost sequence nothing counts
    for (const Sequence& sequence : sequences_) held.emplace_back(sequence.lost.empty() ? static_cast<uint32_t>(sequence.log.size()) : 0);
    std::vector<SequenceId> together;
    for (size_t index : indices) {
      together.push_back(steps[index].sequence);
      held[static_cast<size_t>(together.back().value)] = steps[index].start;
    }
    for (SequenceId broken : cells_.BringTogether(together, weight_bytes_, kv_token_bytes_, held)) {
      Lose(broken, "its KV did not arrive on another sequence of llama.cpp's");
    }
    std::erase_if(indices, [&](size_t index) {
      const std::string& lost = At(steps[index].sequence).lost;
      if (!lost.empty()) outcomes[index] = Failed(EngineFate::kLost, lost);
      return !lost.empty();
    });
  }
  std::ranges::sort(indices, {}, [&](size_t index) { return cells_.lane(steps[index].sequence); });
}

void LlamaEngine::RunTogether(std::span<const EngineStep> steps, std::span<const size_t> indices, std::vector<EngineOutcome>& outcomes) {
  std::vector<EngineStep> batch;
  for (size_t index : indices) {
    batch.push_back(steps[index]);
    batch.back().sequence = SequenceId(cells_.lane(steps[index].sequence));
  }
  const bool alone = batch.size() == 1;
  std::string cause;
  const Decoded decoded = Decode(batch, cause);
  std::vector<size_t> again;  // rolled back, to be tried alone so that only the guilty step fails
  if (decoded == Decoded::kDone) {
    uint32_t first_row = 0;
    std::vector<size_t> not_finite;
    for (size_t index : indices) {
      const bool finite = Collect(steps[index], captured_, first_row, outcomes[index]);
      if (finite) {
        Sample(steps[index], first_row, outcomes[index]);
      } else {
        not_finite.push_back(index);
      }
      first_row += static_cast<uint32_t>(steps[index].tokens.size());
    }
    for (size_t index : not_finite) {
      const std::string reason = "a row of positions " + Span(steps[index]) + " came out not finite";
      if (alone) Lose(steps[index].sequence, reason);
      if (!alone && RollBack(steps[index], reason)) {
        again.push_back(index);
      } else {
        outcomes[index] = Failed(EngineFate::kLost, reason);
      }
    }
    if (!not_finite.empty()) ScrubMemory();
  } else {
    for (size_t index : indices) {
      if (!RollBack(steps[index], cause)) {
        outcomes[index] = Failed(EngineFate::kLost, cause);
      } else if (alone) {
        outcomes[index] = Failed(EngineFate::kRolledBack, cause);
      } else {
        again.push_back(index);
      }
    }
  }
  std::vector<size_t> admitted;
  for (size_t index : again) {
    outcomes[index] = EngineOutcome();
    if (Admit(steps[index], outcomes[index])) admitted.push_back(index);
  }
  RunEach(steps, admitted, outcomes);
}

bool LlamaEngine::Collect(const EngineStep& step, std::span<const float> captured, uint32_t first_row, EngineOutcome& outcome) {
  const auto count = static_cast<uint32_t>(step.tokens.size());
  const uint32_t width = tail() ? info().vocabulary_size : info().boundary_width;
  const uint32_t flagged = FlaggedRows(step);
  const uint32_t wanted = step.rows == RowsWanted::kAll ? count : step.rows == RowsWanted::kLast ? 1 : 0;
  std::vector<float> values;
  if (!tail()) {
    const std::span<const float> rows = captured.subspan(size_t{first_row} * width, size_t{count} * width);
    if (!AllFinite(rows)) return false;
    const std::span<const float> last = rows.last(size_t{wanted} * width);
    values.assign(last.begin(), last.end());
  } else {
    if (step.logits_wanted) values.reserve(size_t{wanted} * width);
    for (uint32_t row = count - flagged; row < count; ++row) {
      const float* logits = llama_get_logits_ith(parts_.context.get(), static_cast<int32_t>(first_row + row));
      MESHNET_CHECK(logits);
      if (!AllFinite({logits, width})) return false;
      if (step.logits_wanted && row + wanted >= count) values.insert(values.end(), logits, logits + width);
    }
  }
  if (!values.empty()) outcome.output = HiddenState(wanted, width, std::move(values));
  return true;
}

void LlamaEngine::Sample(const EngineStep& step, uint32_t first_row, EngineOutcome& outcome) {
  if (!cells_.Holds(step.sequence, past_len(step.sequence))) {
    const std::string cause = "the cells of positions " + Span(step) + " are not where they should be";
    Lose(step.sequence, cause);
    outcome = Failed(EngineFate::kLost, cause);
    return;
  }
  if (!step.sampling) return;
  const auto last_row = static_cast<int32_t>(first_row + step.tokens.size() - 1);
  Result<SampledToken> sampled = At(step.sequence).sampler->Sample(parts_.context.get(), last_row, past_len(step.sequence).value);
  if (sampled.ok()) {
    outcome.sampled.push_back(std::move(*sampled));
    return;
  }
  const std::string cause = sampled.status().message();
  outcome = Failed(RollBack(step, cause) ? EngineFate::kRolledBack : EngineFate::kLost, cause);
  outcome.asked_too_much = sampled.status().code() == StatusCode::kRefused;
}

bool LlamaEngine::RollBack(const EngineStep& step, const std::string& cause) {
  Sequence& sequence = At(step.sequence);
  sequence.log.resize(step.start.value);
  sequence.sampler.reset();
  if (cells_.CutTo(step.sequence, step.start) && !exact_window()) return true;
  Lose(step.sequence, cause);
  return false;
}

// In mode exact the order of a window's cells counts, because sums are taken in it. What a broken call took out of the ring, or a cut out of one that
// has turned, may come back to other cells than those of a context that never went back.
bool LlamaEngine::exact_window() const {
  return parts_.settings.numerics == NumericsMode::kExact && info().truncation_class == TruncationClass::kWindow;
}

void LlamaEngine::Lose(SequenceId id, const std::string& cause) {
  At(id).lost = cause;
  At(id).sampler.reset();
}

// When a value was not finite. If the KV tensors are not all known, nothing less than clearing everything is safe.
void LlamaEngine::ScrubMemory() {
  if (scrub_is_complete_) {
    ScrubNonFinite(parts_.graph.memory);
    return;
  }
  llama_memory_clear(llama_get_memory(parts_.context.get()), true);
  for (Sequence& sequence : sequences_) {
    if (!sequence.log.empty() && sequence.lost.empty()) sequence.lost = "all KV was cleared after another session's value was not finite";
    sequence.sampler.reset();
  }
}

bool LlamaEngine::Truncate(SequenceId id, PastLen keep) {
  Sequence& sequence = At(id);
  MESHNET_CHECK(keep <= past_len(id));
  if (!sequence.lost.empty()) return false;
  if (!cells_.CutTo(id, keep)) {
    Lose(id, "a truncation to " + std::to_string(keep.value) + " could not be proven");
    return false;
  }
  sequence.log.resize(keep.value);
  if (sequence.sampler && sequence.sampler->accepted() > keep.value) sequence.sampler.reset();
  return true;
}

void LlamaEngine::Remove(SequenceId id) {
  cells_.Clear(id);
  At(id) = Sequence();
}

PastLen LlamaEngine::past_len(SequenceId sequence) const { return PastLen(static_cast<uint32_t>(At(sequence).log.size())); }

PastLen LlamaEngine::intact_from(SequenceId sequence) const {
  const PastLen intact = cells_.intact_from(sequence);
  return exact_window() && intact > PastLen(0) ? past_len(sequence) : intact;
}

Status LlamaEngine::CheckSampling(const SamplingParams& params) const {
  if (!tail()) return Refused("only the tail samples; this shard holds layers " + info().range.Text());
  auto sampler = TailSampler::Create({parts_.model.get(), info().context_tokens}, params);
  if (!sampler.ok()) return sampler.status();
  checked_sampler_ = std::move(*sampler);
  return OkStatus();
}

}  // namespace meshnet
