#include "local_shard.h"

#include "base/system_clock.h"

namespace meshnet {
namespace {
constexpr std::chrono::seconds kLongWhile(20);

StepResult CopyOf(const StepResult& result) {
  StepResult copy;
  copy.seq = result.seq;
  copy.replayed = result.replayed;
  copy.past_len = result.past_len;
  copy.digest = result.digest;
  copy.output = result.output.Copy();
  copy.sampled = result.sampled;
  copy.credit = result.credit;
  copy.kv_tokens_reserved = result.kv_tokens_reserved;
  return copy;
}

}  // namespace

struct LocalShard::Process : public kv::SequenceProbe {
  PastLen IntactFrom(SequenceId sequence) const override { return engine->intact_from(sequence); }

  Incarnation incarnation;
  std::unique_ptr<FakeEngine> engine;
  std::unique_ptr<kv::HotKv> kv;
  std::deque<Queued> queue;
  std::map<SessionKey, SamplingParams> sampling;  // sent when it changes, kept until then
};

LocalShard::LocalShard(LocalShardOptions options, const Clock& clock) : options_(std::move(options)), clock_(clock) {
  thread_ = std::thread([this] { Loop(); });
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return description_.state == ShardState::kServing; });
}

LocalShard::~LocalShard() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    alive_ = false;
    block_ = false;
  }
  changed_.notify_all();
  thread_.join();
}

std::unique_ptr<LocalShard::Process> LocalShard::NewProcess() {
  auto process = std::make_unique<Process>();
  process->incarnation = RandomId<Incarnation>();
  FakeEngineOptions engine;
  engine.model = options_.model;
  engine.range = options_.range;
  engine.sessions_max = options_.sessions_max;
  engine.context_tokens = options_.context_tokens;
  engine.budget_tokens = options_.budget_tokens;
  engine.chunk_rows_max = options_.chunk_rows_max;
  engine.on_run = [this](std::span<const EngineStep>) {
    std::unique_lock lock(mutex_);
    if (!block_) return;
    if (calls_left_ > 0) {
      --calls_left_;
      return;
    }
    blocked_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return !block_; });
    blocked_ = false;
  };
  process->engine = std::make_unique<FakeEngine>(std::move(engine));
  kv::HotKvConfig config;
  config.sessions_max = options_.sessions_max;
  config.context_tokens = options_.context_tokens;
  config.budget_tokens = options_.budget_tokens;
  config.chunk_rows_max = options_.chunk_rows_max;
  config.vocabulary_size = options_.model.vocabulary_size;
  config.incarnation = process->incarnation;
  process->kv = std::make_unique<kv::HotKv>(config, *process);
  return process;
}

void LocalShard::Publish(Process& process) {
  const EngineInfo& info = process.engine->info();
  ShardDescription description;
  description.incarnation = process.incarnation;
  description.state = ShardState::kServing;
  description.process_id = 1000 + options_.range.begin;
  description.model_root.bytes[0] = 7;
  description.model_name = "fake";
  description.architecture = "fake";
  description.layer_count = info.layer_count;
  description.range = info.range;
  description.boundary_width = info.boundary_width;
  description.vocabulary_size = info.vocabulary_size;
  description.limits = {options_.sessions_max, options_.context_tokens, options_.budget_tokens, 600, options_.chunk_rows_max, 4, 64u << 20};
  description.numerics = info.numerics;
  std::lock_guard lock(mutex_);
  description_ = description;
  stats_ = process.kv->Stats(clock_.Now());
  stats_.state = ShardState::kServing;
  stats_.incarnation = process.incarnation;
  stats_.steps_queued = static_cast<uint32_t>(process.queue.size());
  changed_.notify_all();
}

void LocalShard::Loop() {
  std::unique_ptr<Process> process = NewProcess();
  Publish(*process);
  for (;;) {
    std::deque<Posted> posted;
    bool dead = false;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopping_ || restart_ || !tasks_.empty() || (alive_ && process && !process->queue.empty()) || (!alive_ && process); });
      posted.swap(tasks_);
      dead = !alive_;
      if (restart_) {
        restart_ = false;
        alive_ = true;
      }
    }
    if (dead) {
      if (process) {
        for (Queued& queued : process->queue) queued.done(TransportFault{"killed"});
        process.reset();
      }
      for (Posted& each : posted) each.if_dead();
      std::lock_guard lock(mutex_);
      if (stopping_) return;
      continue;
    }
    if (!process) {
      process = NewProcess();
      Publish(*process);
    }
    for (Posted& each : posted) each.task(*process);
    if (!process->queue.empty()) RunOne(*process);
    Publish(*process);
  }
}

void LocalShard::RunOne(Process& process) {
  Queued queued = std::move(process.queue.front());
  process.queue.pop_front();
  const auto execution = process.kv->Start(queued.ticket, clock_.Now());
  if (!execution) {
    for (auto& [ticket, refusal] : process.kv->TakeDropped()) {
      if (ticket == queued.ticket) queued.done(refusal);
    }
    return;
  }
  kv::StepFate fate = kv::StepFate::kDone;
  StepResult result;
  std::string cause;
  if (execution->truncate && !process.engine->Truncate(execution->sequence, execution->start)) {
    fate = kv::StepFate::kLost;
  } else {
    if (queued.step.sampling) process.sampling[queued.step.key] = *queued.step.sampling;
    const auto sampling = process.sampling.find(queued.step.key);
    const bool samples = queued.step.rows == RowsWanted::kLast && sampling != process.sampling.end();
    EngineStep step{execution->sequence, execution->start, queued.step.tokens, queued.step.input ? &*queued.step.input : nullptr,
                    queued.step.rows, queued.step.logits_wanted, samples ? &sampling->second : nullptr};
    EngineOutcome outcome = std::move(process.engine->Run({&step, 1}).front());
    if (outcome.fate != EngineFate::kDone) fate = outcome.fate == EngineFate::kLost ? kv::StepFate::kLost : kv::StepFate::kRolledBack;
    result.output = std::move(outcome.output);
    result.sampled = std::move(outcome.sampled);
    cause = outcome.cause;
  }
  const size_t count = queued.step.tokens.size();
  kv::Settled settled = process.kv->Settle(queued.ticket, fate, std::move(result), cause, clock_.Now());
  Remove(process, settled.effects);
  for (const auto& [ticket, refusal] : settled.dropped) Answer(process, ticket, refusal);
  bool alive = false;
  {
    std::lock_guard lock(mutex_);
    alive = alive_;
    if (settled.result) tokens_computed_ += count;
  }
  Publish(process);
  if (!alive) {
    queued.done(TransportFault{"killed"});
  } else if (settled.result) {
    queued.done(CopyOf(*settled.result));
  } else {
    queued.done(settled.refusal.value_or(Refusal{}));
  }
}

void LocalShard::Answer(Process& process, const kv::Ticket& ticket, Reply<StepResult> reply) {
  for (auto queued = process.queue.begin(); queued != process.queue.end(); ++queued) {
    if (!(queued->ticket == ticket)) continue;
    Done<StepResult> done = std::move(queued->done);
    process.queue.erase(queued);
    done(std::move(reply));
    return;
  }
}

void LocalShard::Remove(Process& process, const kv::Effects& effects) {
  for (SequenceId sequence : effects.removals) {
    process.engine->Remove(sequence);
    process.kv->ConfirmRemoved(sequence);
  }
}

void LocalShard::Post(Task task, std::function<void()> if_dead) {
  {
    std::lock_guard lock(mutex_);
    tasks_.push_back({std::move(task), std::move(if_dead)});
  }
  changed_.notify_all();
}

void LocalShard::Kill() {
  {
    std::lock_guard lock(mutex_);
    alive_ = false;
    block_ = false;
  }
  changed_.notify_all();
}

void LocalShard::Restart() {
  {
    std::lock_guard lock(mutex_);
    alive_ = false;
    restart_ = true;
    block_ = false;
  }
  changed_.notify_all();
}

void LocalShard::Block(uint32_t calls) {
  std::lock_guard lock(mutex_);
  block_ = true;
  calls_left_ = calls;
  cancels_ = 0;
}

bool LocalShard::WaitCancel() {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kLongWhile, [&] { return cancels_ > 0; });
}

void LocalShard::Unblock() {
  {
    std::lock_guard lock(mutex_);
    block_ = false;
  }
  changed_.notify_all();
}

void LocalShard::WaitBlocked() {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kLongWhile, [&] { return blocked_; });
}

bool LocalShard::WaitStats(const std::function<bool(const ShardStats&)>& claim) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kLongWhile, [&] { return claim(stats_); });
}

ShardStats LocalShard::StatsNow() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

uint64_t LocalShard::tokens_computed() const {
  std::lock_guard lock(mutex_);
  return tokens_computed_;
}

void LocalShard::Describe(Time, Done<ShardDescription> done) {
  Reply<ShardDescription> reply = TransportFault{"connection refused"};
  {
    std::lock_guard lock(mutex_);
    if (alive_) reply = description_;
  }
  done(std::move(reply));
}

void LocalShard::Stats(Time, Done<ShardStats> done) {
  Reply<ShardStats> reply = TransportFault{"connection refused"};
  {
    std::lock_guard lock(mutex_);
    if (alive_) reply = stats_;
  }
  done(std::move(reply));
}

void LocalShard::Open(OpenRequest request, Time, Done<OpenReply> done) {
  Post([this, request = std::move(request), done](Process& process) {
    kv::OpenDecision decision = process.kv->Open(request, clock_.Now());
    if (auto* refusal = std::get_if<Refusal>(&decision)) return done(*refusal);
    auto& accepted = std::get<kv::OpenAccepted>(decision);
    for (auto& [ticket, refusal] : process.kv->TakeDropped()) Answer(process, ticket, refusal);
    Remove(process, accepted.effects);
    Publish(process);
    done(accepted.reply);
  }, [done] { done(TransportFault{"connection refused"}); });
}

void LocalShard::Forward(Step step, Time, Done<StepResult> done) {
  auto shared = std::make_shared<Step>(std::move(step));  // shared: a task is a std::function
  Post([this, shared, done](Process& process) {
    kv::StepDecision decision = process.kv->Admit(*shared, std::nullopt, clock_.Now());
    if (auto* refusal = std::get_if<Refusal>(&decision)) return done(*refusal);
    if (auto* replayed = std::get_if<kv::StepReplayed>(&decision)) {
      StepResult copy = CopyOf(*replayed->result);
      copy.replayed = true;
      return done(std::move(copy));
    }
    if (auto* admitted = std::get_if<kv::StepAdmitted>(&decision)) {
      process.queue.push_back({admitted->ticket, std::move(*shared), done});
      return Publish(process);
    }
    for (Queued& queued : process.queue) {  // the same step again: one result for both
      if (!(queued.ticket == std::get<kv::StepJoined>(decision).ticket)) continue;
      queued.done = [first = queued.done, done](Reply<StepResult> reply) {
        if (auto* result = std::get_if<StepResult>(&reply)) {
          first(CopyOf(*result));
        } else if (auto* refusal = std::get_if<Refusal>(&reply)) {
          first(*refusal);
        } else {
          first(std::get<TransportFault>(reply));
        }
        done(std::move(reply));
      };
    }
  }, [done] { done(TransportFault{"connection refused"}); });
}

void LocalShard::Cancel(SessionKey key) {
  Post([this, key](Process& process) {
    for (const auto& [ticket, refusal] : process.kv->Cancel(key)) Answer(process, ticket, refusal);
    Publish(process);
  }, [] {});
  {
    std::lock_guard lock(mutex_);
    ++cancels_;
  }
  changed_.notify_all();
}

void LocalShard::Release(SessionKey key, Time, Done<ReleaseOutcome> done) {
  Post([this, key, done](Process& process) {
    kv::Released released = process.kv->Release(key, clock_.Now());
    for (const auto& [ticket, refusal] : released.dropped) Answer(process, ticket, refusal);
    Remove(process, released.effects);
    Publish(process);
    done(released.outcome);
  }, [done] { done(TransportFault{"connection refused"}); });
}

void LocalShard::Drain(Time, Done<ShardState> done) { done(TransportFault{"not here"}); }

}  // namespace meshnet
