// A shard without threads: hot KV, engine and schedule. Whoever owns it calls it from one thread, runs the plan that Next gives, and flushes the
// answers; time comes from the clock it is given, so tests can stand still.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "engine/engine.h"
#include "kv/fingerprint.h"
#include "kv/hot_kv.h"
#include "protocol/describe.h"
#include "protocol/session_open.h"
#include "worker/answer_sink.h"
#include "worker/hot_kv_settings.h"
#include "worker/scheduler.h"

namespace meshnet {

// Limits, numerics and measured bytes of `description` from the engine; what the engine holds less of than the settings want is published
// as it is. `frame_bytes_cap`: what the transport takes.
void DescribeEngine(const Engine& engine, const HotKvSettings& settings, uint64_t frame_bytes_cap, ShardDescription& description);

class ShardCore : private kv::SequenceProbe {
 public:
  // `description` as DescribeEngine left it. `clock` outlives the core.
  ShardCore(std::unique_ptr<Engine> engine, const ShardDescription& description, const Clock& clock);
  ~ShardCore() override;

  std::variant<OpenReply, Refusal> Open(const OpenRequest& request);
  void Submit(SubmittedStep step, const std::shared_ptr<StepAnswerSink>& sink);
  void Cancel(const SessionKey& key);
  // The sink's stream is gone: a session's queued steps are cancelled when nobody waits for any of them any more. The session stays.
  void EndStream(const std::shared_ptr<StepAnswerSink>& sink);
  ReleaseOutcome Release(const SessionKey& key);
  ShardStats Stats() const;

  void BeginDrain() { kv_.BeginDrain(); }
  // No session is live, or none has had a step for `quiet`.
  bool quiet_for(Duration quiet) const;
  // Ends all sessions with tombstones.
  void FinishDrain();

  // Removes what has outlived its TTL. Call before commands are acted on, so that a late one hears the true reason.
  void Expire();
  std::optional<Time> next_expiry() const { return kv_.next_expiry(); }

  Scheduler::Plan Next() { return scheduler_.Next(clock_.Now()); }
  bool RegatherAfterTurn() { return scheduler_.RegatherAfterTurn(clock_.Now()); }
  // One engine call.
  void Run(const Scheduler::Plan& plan);

  // Hands out what was answered since the last call, grouped by sink.
  void FlushAnswers();
  // Answers everything that is still queued with `refusal`; nothing runs any more.
  void RefuseAll(const Refusal& refusal);

  // Why the shard serves no more: an invariant broke. Empty while it serves.
  const std::string& poison() const { return poison_; }
  // The last commands, one a line, for whoever looks for the cause.
  std::string History() const;
  const Engine& engine() const { return *engine_; }
  // For tests: aborts when an invariant of the protocol does not hold.
  void CheckInvariants() const;
  std::string Snapshot() const { return kv_.Snapshot(); }

 private:
  struct Waiter {
    std::shared_ptr<StepAnswerSink> sink;
    uint64_t request_id = 0;
  };
  struct PendingStep {
    kv::Ticket ticket;
    Step step;
    Time arrived;
    std::vector<Waiter> waiters;
  };
  // A step between HotKv::Start and Settle.
  struct RunningStep {
    PendingStep pending;
    kv::Execution execution;
  };
  struct Record {
    char what = 0;
    std::string id_prefix;
    uint64_t epoch = 0, seq = 0, start = 0, count = 0;
  };

  PastLen IntactFrom(SequenceId sequence) const override { return engine_->intact_from(sequence); }

  std::optional<Refusal> CheckFields(IncomingStep& incoming);
  std::vector<RunningStep> StartAll(const Scheduler::Plan& plan, Time now);
  std::vector<EngineStep> EngineStepsOf(const std::vector<RunningStep>& running) const;
  void SettleOne(RunningStep running, EngineOutcome outcome, Time started, Duration took);
  void Settle(PendingStep pending, EngineOutcome outcome, std::shared_ptr<StepResult> result);
  bool Agrees(const RunningStep& running, const EngineOutcome& outcome);
  const SamplingParams* SamplingFor(const RunningStep& running) const;

  void Perform(const kv::Effects& effects);
  void AnswerDropped(std::vector<kv::Dropped> dropped);
  void Answer(const Waiter& waiter, std::variant<RecordedResult, Refusal> outcome);
  void AnswerAll(const PendingStep& pending, const Refusal& refusal);
  Refusal Named(Refusal refusal) const;
  void Poison(std::string why);
  Refusal PoisonRefusal() const;
  void Note(char what, const SessionKey& key, uint64_t seq = 0, uint64_t start = 0, uint64_t count = 0);

  const std::unique_ptr<Engine> engine_;
  const ShardDescription description_;
  const Clock& clock_;
  kv::HotKv kv_;
  Scheduler scheduler_;
  std::map<uint64_t, PendingStep> pending_;  // by ticket serial: queued steps
  std::vector<std::optional<SamplingParams>> sampling_;  // by sequence: as the last committed step left it
  std::vector<std::pair<std::shared_ptr<StepAnswerSink>, StepAnswer>> answers_;
  std::vector<Record> history_;  // a ring
  size_t history_next_ = 0;
  Time last_step_;
  uint64_t engine_calls_ = 0;
  std::string poison_;
};

}  // namespace meshnet
