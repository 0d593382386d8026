// One engine call of ShardCore: start, run, compare, settle.
#include <algorithm>

#include "base/check.h"
#include "worker/shard_core.h"

namespace meshnet {
namespace {

kv::StepFate FateOf(EngineFate fate) {
  switch (fate) {
    case EngineFate::kDone: return kv::StepFate::kDone;
    case EngineFate::kRolledBack: return kv::StepFate::kRolledBack;
    case EngineFate::kLost: return kv::StepFate::kLost;
  }
  MESHNET_CHECK(false && "closed enum");
}

}  // namespace

void ShardCore::Run(const Scheduler::Plan& plan) {
  MESHNET_CHECK(plan.verdict == Scheduler::Plan::Verdict::kRun);
  const Time started = clock_.Now();
  std::vector<RunningStep> running = StartAll(plan, started);
  std::vector<EngineOutcome> outcomes;
  Duration took{0};
  if (!running.empty()) {
    std::vector<EngineStep> steps = EngineStepsOf(running);
    ++engine_calls_;
    outcomes = engine_->Run(steps);
    took = clock_.Now() - started;
    MESHNET_CHECK(outcomes.size() == running.size());
    for (size_t i = 0; i < running.size(); ++i) SettleOne(std::move(running[i]), std::move(outcomes[i]), started, took);
  }
  scheduler_.Finished(plan, took);
  last_step_ = clock_.Now();
}

std::vector<ShardCore::RunningStep> ShardCore::StartAll(const Scheduler::Plan& plan, Time now) {
  scheduler_.Started(plan);
  std::vector<RunningStep> running;
  for (const kv::Ticket& ticket : plan.tickets) {
    std::optional<kv::Execution> execution = kv_.Start(ticket, now);
    // Past its deadline: it is among the dropped.
    if (!execution) continue;
    auto pending = pending_.extract(ticket.serial);
    MESHNET_CHECK(!pending.empty());
    RunningStep step{std::move(pending.mapped()), *execution};
    if (execution->truncate && !engine_->Truncate(execution->sequence, execution->start)) {
      EngineOutcome lost;
      lost.fate = EngineFate::kLost;
      lost.cause = "the engine could not cut the sequence to " + std::to_string(execution->start.value) + " tokens";
      Settle(std::move(step.pending), std::move(lost), {});
      continue;
    }
    running.push_back(std::move(step));
  }
  AnswerDropped(kv_.TakeDropped());
  // The order that keeps rows in their places and micro-batches whole (docs/engine.md, Calls).
  std::ranges::sort(running, {}, [](const RunningStep& step) { return step.execution.sequence; });
  return running;
}

const SamplingParams* ShardCore::SamplingFor(const RunningStep& running) const {
  const Step& step = running.pending.step;
  if (!description_.is_tail() || step.rows != RowsWanted::kLast) return nullptr;
  if (step.sampling) return &*step.sampling;
  const std::optional<SamplingParams>& kept = sampling_[static_cast<size_t>(running.execution.sequence.value)];
  return kept ? &*kept : nullptr;
}

std::vector<EngineStep> ShardCore::EngineStepsOf(const std::vector<RunningStep>& running) const {
  std::vector<EngineStep> steps;
  for (const RunningStep& one : running) {
    const Step& step = one.pending.step;
    // A negative id would mean every sequence to llama.cpp.
    MESHNET_CHECK(one.execution.sequence.value >= 0 && static_cast<uint32_t>(one.execution.sequence.value) < engine_->info().sequences_max);
    EngineStep& out = steps.emplace_back();
    out.sequence = one.execution.sequence;
    out.start = one.execution.start;
    out.tokens = step.tokens;
    out.input = step.input ? &*step.input : nullptr;
    out.rows = step.rows;
    out.logits_wanted = step.logits_wanted;
    out.sampling = SamplingFor(one);
  }
  return steps;
}

// Whether the engine holds what its outcome says. A step that claims to be done and is not would be wrong text that nobody notices.
bool ShardCore::Agrees(const RunningStep& running, const EngineOutcome& outcome) {
  const PastLen held = engine_->past_len(running.execution.sequence);
  const uint64_t start = running.execution.start.value;
  switch (outcome.fate) {
    case EngineFate::kDone: return held.value == start + running.pending.step.tokens.size();
    case EngineFate::kRolledBack: return held.value == start;
    case EngineFate::kLost: return true;
  }
  return false;
}

void ShardCore::SettleOne(RunningStep running, EngineOutcome outcome, Time started, Duration took) {
  if (!poison_.empty()) {
    AnswerAll(running.pending, PoisonRefusal());
    return;
  }
  if (!Agrees(running, outcome)) {
    const std::string held = std::to_string(engine_->past_len(running.execution.sequence).value);
    if (outcome.fate == EngineFate::kDone) {
      pending_.emplace(running.pending.ticket.serial, std::move(running.pending));
      Poison("after a step the engine holds " + held + " tokens of sequence " + std::to_string(running.execution.sequence.value));
      return;
    }
    outcome.fate = EngineFate::kLost;
    outcome.cause += " (and the engine holds " + held + " tokens)";
  }
  if (outcome.fate == EngineFate::kDone && !outcome.output.all_finite()) {
    outcome.fate = EngineFate::kLost;
    outcome.cause = "a row that came out was not finite";
  }
  std::shared_ptr<StepResult> result;
  if (outcome.fate == EngineFate::kDone) {
    result = std::make_shared<StepResult>();
    result->output = std::move(outcome.output);
    result->sampled = std::move(outcome.sampled);
    result->queue_time = std::chrono::duration_cast<std::chrono::microseconds>(started - running.pending.arrived);
    result->compute_time = std::chrono::duration_cast<std::chrono::microseconds>(took);
    // Only a commit changes how the session samples, so a step that failed can be sent again as it was.
    if (running.pending.step.sampling) sampling_[static_cast<size_t>(running.execution.sequence.value)] = std::move(running.pending.step.sampling);
  }
  Settle(std::move(running.pending), std::move(outcome), std::move(result));
}

void ShardCore::Settle(PendingStep pending, EngineOutcome outcome, std::shared_ptr<StepResult> result) {
  kv::Settled settled = kv_.Settle(pending.ticket, FateOf(outcome.fate), std::move(result), std::move(outcome.cause), clock_.Now());
  MESHNET_CHECK((settled.result != nullptr) != settled.refusal.has_value());
  if (outcome.asked_too_much && settled.refusal && (settled.refusal->reason == Reason::kExecFailed || settled.refusal->detail == Detail::kLost)) {
    settled.refusal->reason = Reason::kBadRequest;
    settled.refusal->detail = Detail::kLimit;
  }
  if (settled.result) {
    for (const Waiter& waiter : pending.waiters) Answer(waiter, RecordedResult{settled.result, false});
  } else {
    AnswerAll(pending, Named(std::move(*settled.refusal)));
  }
  AnswerDropped(std::move(settled.dropped));
  Perform(settled.effects);
}

void ShardCore::CheckInvariants() const { kv_.CheckInvariants(); }

}  // namespace meshnet
