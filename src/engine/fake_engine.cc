#include "engine/fake_engine.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace meshnet {
namespace {

EngineInfo InfoOf(const FakeEngineOptions& options) {
  EngineInfo info;
  info.range = options.range;
  info.layer_count = options.model.layer_count;
  info.boundary_width = options.model.width;
  info.vocabulary_size = options.model.vocabulary_size;
  info.sequences_max = options.sessions_max;
  info.context_tokens = options.context_tokens;
  info.budget_tokens = options.budget_tokens;
  info.chunk_rows_max = options.chunk_rows_max;
  info.truncation_class = options.truncation_class;
  info.window_tokens = options.truncation_class == TruncationClass::kWindow ? options.window_tokens : 0;
  info.numerics = options.numerics;
  info.numerics.context_tokens = options.context_tokens;
  return info;
}

}  // namespace

FakeEngine::FakeEngine(FakeEngineOptions options) : options_(std::move(options)), info_(InfoOf(options_)) {
  const FakeModel& model = options_.model;
  MESHNET_CHECK(model.layer_count > 0 && model.width > 0 && model.vocabulary_size > 1);
  MESHNET_CHECK(model.answer_tokens == 0 || !model.end_of_generation_tokens.empty());
  MESHNET_CHECK(!options_.range.empty() && options_.range.end <= model.layer_count);
  MESHNET_CHECK(options_.truncation_class != TruncationClass::kWindow || options_.window_tokens > 0);
  sequences_.resize(options_.sessions_max);
  for (Sequence& sequence : sequences_) sequence.states.resize(options_.range.size());
}

EngineMemory FakeEngine::memory() const {
  EngineMemory memory;
  memory.weight_bytes = uint64_t{1} << 20;
  memory.kv_bytes = uint64_t{options_.budget_tokens} * options_.range.size() * sizeof(FakeState);
  memory.compute_bytes = uint64_t{options_.chunk_rows_max} * options_.model.width * sizeof(float);
  return memory;
}

FakeEngine::Sequence& FakeEngine::At(SequenceId sequence) {
  MESHNET_CHECK(sequence.value >= 0 && static_cast<uint32_t>(sequence.value) < options_.sessions_max);
  return sequences_[static_cast<size_t>(sequence.value)];
}

const FakeEngine::Sequence& FakeEngine::At(SequenceId sequence) const { return const_cast<FakeEngine*>(this)->At(sequence); }

void FakeEngine::CheckCall(std::span<const EngineStep> steps) const {
  MESHNET_CHECK(!steps.empty());
  for (size_t i = 0; i < steps.size(); ++i) {
    const EngineStep& step = steps[i];
    MESHNET_CHECK(!step.tokens.empty() && step.tokens.size() <= options_.chunk_rows_max);
    MESHNET_CHECK(steps.size() == 1 || step.tokens.size() == 1);
    MESHNET_CHECK(i == 0 || steps[i - 1].sequence < step.sequence);
    MESHNET_CHECK(At(step.sequence).broken || step.start == past_len(step.sequence));
    MESHNET_CHECK((options_.range.begin == 0) == (step.input == nullptr));
    if (step.input) {
      MESHNET_CHECK(step.input->rows() == step.tokens.size() && step.input->width() == options_.model.width);
    }
    for (Token token : step.tokens) MESHNET_CHECK(token >= 0 && static_cast<uint32_t>(token) < options_.model.vocabulary_size);
    if (options_.range.end != options_.model.layer_count) MESHNET_CHECK(!step.sampling && !step.logits_wanted);
  }
}

std::vector<EngineOutcome> FakeEngine::Run(std::span<const EngineStep> steps) {
  if (options_.on_run) options_.on_run(steps);
  CheckCall(steps);
  {
    std::lock_guard lock(mutex_);
    ++counts_.runs;
  }
  std::vector<EngineOutcome> outcomes;
  outcomes.reserve(steps.size());
  for (const EngineStep& step : steps) outcomes.push_back(RunOne(step));
  return outcomes;
}

EngineOutcome FakeEngine::RunOne(const EngineStep& step) {
  if (std::optional<EngineOutcome> failed = Fail(step)) return std::move(*failed);
  std::vector<FakeState> last_states;
  Append(At(step.sequence), step, last_states);
  {
    std::lock_guard lock(mutex_);
    ++counts_.steps;
    counts_.tokens += step.tokens.size();
  }
  return Outcome(step, last_states);
}

std::optional<EngineOutcome> FakeEngine::Fail(const EngineStep& step) {
  EngineOutcome outcome;
  Sequence& sequence = At(step.sequence);
  FakeFault::Kind kind = FakeFault::Kind::kRolledBack;
  if (sequence.broken) {
    outcome.fate = EngineFate::kLost;
    outcome.cause = "the sequence was not removed after it was lost";
  } else if (TakeFault(step.sequence, false, kind)) {
    outcome.asked_too_much = kind == FakeFault::Kind::kAskedTooMuch;
    outcome.fate = outcome.asked_too_much || kind == FakeFault::Kind::kRolledBack ? EngineFate::kRolledBack : EngineFate::kLost;
    outcome.cause = kind == FakeFault::Kind::kNonFinite ? "a row was not finite (injected)" : "injected failure";
  } else if (step.input && !step.input->all_finite()) {
    outcome.fate = EngineFate::kLost;
    outcome.cause = "an input row was not finite";
  } else if (step.start.value + step.tokens.size() > options_.context_tokens || cells_used() + step.tokens.size() > options_.budget_tokens) {
    outcome.fate = EngineFate::kRolledBack;
    outcome.cause = "no free cell for the step";
  } else {
    return std::nullopt;
  }
  if (outcome.fate == EngineFate::kLost) sequence.broken = true;
  return outcome;
}

void FakeEngine::Append(Sequence& sequence, const EngineStep& step, std::vector<FakeState>& last_states) {
  std::vector<float> row(options_.model.width);
  uint32_t position = step.start.value;
  for (size_t i = 0; i < step.tokens.size(); ++i, ++position) {
    const Token token = step.tokens[i];
    uint64_t input = step.input ? FakeRowHash(step.input->row(static_cast<uint32_t>(i))) : FakeEmbedding(token);
    for (uint32_t layer = 0; layer < options_.range.size(); ++layer) {
      const uint32_t absolute = options_.range.begin + layer;
      std::vector<FakeState>& states = sequence.states[layer];
      const FakeState before = states.empty() ? FakeEmptyState(absolute) : states.back();
      states.push_back(FakeNextState(before, absolute, token, position, input));
      FakeFillRow(states.back(), row);
      input = FakeRowHash(row);
    }
    sequence.tokens.push_back(token);
    last_states.push_back(sequence.states.back().back());
  }
  if (options_.truncation_class == TruncationClass::kWindow) {
    // Cells that the next position cannot see are recycled once the slack is used up.
    const uint32_t cells = options_.window_tokens + options_.window_slack_tokens;
    if (position > cells) sequence.intact_from = std::max(sequence.intact_from, PastLen(position - cells));
  }
}

EngineOutcome FakeEngine::Outcome(const EngineStep& step, std::span<const FakeState> last_states) const {
  EngineOutcome outcome;
  const bool tail = options_.range.end == options_.model.layer_count;
  const size_t rows = step.rows == RowsWanted::kNone ? 0 : step.rows == RowsWanted::kLast ? 1 : last_states.size();
  const std::span<const FakeState> wanted = last_states.last(rows);
  if (rows > 0 && (!tail || step.logits_wanted)) {
    const uint32_t width = tail ? options_.model.vocabulary_size : options_.model.width;
    std::vector<float> values(rows * width);
    for (size_t i = 0; i < rows; ++i) {
      const std::span<float> row = std::span(values).subspan(i * width, width);
      if (tail) {
        FakeFillLogits(options_.model, wanted[i], row);
      } else {
        FakeFillRow(wanted[i], row);
      }
    }
    outcome.output = HiddenState(static_cast<uint32_t>(rows), width, std::move(values));
  }
  if (step.sampling) {
    const uint32_t position = step.start.value + static_cast<uint32_t>(step.tokens.size());
    outcome.sampled.push_back(FakeSample(options_.model, last_states.back(), position, *step.sampling));
  }
  return outcome;
}

bool FakeEngine::Truncate(SequenceId id, PastLen keep) {
  Sequence& sequence = At(id);
  const PastLen past = past_len(id);
  FakeFault::Kind kind;
  bool proven = !sequence.broken && keep <= past && !TakeFault(id, true, kind);
  if (proven && keep.value > 0 && keep < past) {
    if (options_.truncation_class == TruncationClass::kWhole) proven = false;
    if (options_.truncation_class == TruncationClass::kWindow) {
      proven = sequence.intact_from.value == 0 || sequence.intact_from.value + options_.window_tokens <= keep.value;
    }
  }
  if (!proven) {
    sequence.broken = true;
    return false;
  }
  sequence.tokens.resize(keep.value);
  for (std::vector<FakeState>& states : sequence.states) states.resize(keep.value);
  if (keep.value == 0) sequence.intact_from = PastLen(0);
  return true;
}

void FakeEngine::Remove(SequenceId id) {
  Sequence& sequence = At(id);
  sequence.tokens.clear();
  for (std::vector<FakeState>& states : sequence.states) states.clear();
  sequence.intact_from = PastLen(0);
  sequence.broken = false;
  std::lock_guard lock(mutex_);
  ++counts_.removals;
}

PastLen FakeEngine::past_len(SequenceId sequence) const { return PastLen(static_cast<uint32_t>(At(sequence).tokens.size())); }

PastLen FakeEngine::intact_from(SequenceId sequence) const { return At(sequence).intact_from; }

Status FakeEngine::CheckSampling(const SamplingParams& params) const {
  if (params.grammar == kFakeBadGrammar) return Refused("the grammar does not parse: a parenthesis is not closed");
  return OkStatus();
}

void FakeEngine::Inject(FakeFault fault) {
  std::lock_guard lock(mutex_);
  faults_.push_back(fault);
}

FakeEngineCounts FakeEngine::counts() const {
  std::lock_guard lock(mutex_);
  return counts_;
}

std::span<const Token> FakeEngine::tokens(SequenceId sequence) const { return At(sequence).tokens; }

bool FakeEngine::TakeFault(SequenceId sequence, bool truncating, FakeFault::Kind& kind) {
  std::lock_guard lock(mutex_);
  auto fault = std::ranges::find_if(faults_, [&](const FakeFault& f) {
    return (f.kind == FakeFault::Kind::kTruncateFails) == truncating && f.sequence.value_or(sequence) == sequence;
  });
  if (fault == faults_.end()) return false;
  kind = fault->kind;
  faults_.erase(fault);
  return true;
}

uint64_t FakeEngine::cells_used() const {
  uint64_t used = 0;
  for (const Sequence& sequence : sequences_) used += sequence.tokens.size();
  return used;
}

}  // namespace meshnet
