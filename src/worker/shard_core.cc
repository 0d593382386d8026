#include "worker/shard_core.h"

#include <algorithm>
#include <functional>
#include <unordered_map>

#include "base/check.h"
#include "wire/validate.h"

namespace meshnet {
namespace {

constexpr uint32_t kWindowSteps = 4;
// Callers that wait for one and the same queued step, all but one of them a resend.
constexpr size_t kWaitersMax = 8;
constexpr size_t kHistoryMax = 64;

kv::HotKvConfig ConfigOf(const ShardDescription& description) {
  kv::HotKvConfig config;
  config.sessions_max = description.limits.sessions_max;
  config.context_tokens = description.limits.context_tokens;
  config.budget_tokens = description.limits.budget_tokens;
  config.ttl = std::chrono::seconds(description.limits.ttl_seconds);
  config.window_steps = description.limits.window_steps;
  config.chunk_rows_max = description.limits.chunk_rows_max;
  config.pending_tokens_max = description.limits.window_steps * description.limits.chunk_rows_max;
  config.vocabulary_size = description.vocabulary_size;
  config.truncation_class = description.truncation_class;
  config.window_tokens = description.window_tokens;
  config.incarnation = description.incarnation;
  return config;
}

Refusal BadSampling(const Status& status) {
  Refusal refusal;
  refusal.reason = Reason::kBadRequest;
  refusal.detail = Detail::kLimit;
  refusal.message = status.message();
  return refusal;
}

}  // namespace

void DescribeEngine(const Engine& engine, const HotKvSettings& settings, uint64_t frame_bytes_cap, ShardDescription& description) {
  const EngineInfo& info = engine.info();
  MESHNET_CHECK(info.sequences_max > 0 && info.chunk_rows_max > 0 && info.boundary_width > 0 && info.vocabulary_size > 0);
  description.range = info.range;
  description.layer_count = info.layer_count;
  description.boundary_width = info.boundary_width;
  description.vocabulary_size = info.vocabulary_size;
  description.truncation_class = info.truncation_class;
  description.window_tokens = info.window_tokens;
  description.numerics = info.numerics;

  ShardLimits& limits = description.limits;
  limits.sessions_max = std::min(settings.sessions_max, info.sequences_max);
  limits.budget_tokens = std::min(settings.budget_tokens, info.budget_tokens);
  limits.context_tokens = std::min({settings.context_tokens, info.context_tokens, limits.budget_tokens});
  limits.ttl_seconds = settings.ttl_seconds;
  limits.window_steps = kWindowSteps;
  // A chunk that the transport would not take is no chunk to offer.
  const uint64_t rows = (frame_bytes_cap - FrameBytesMax(0, 0)) / (uint64_t{info.boundary_width} * sizeof(float));
  limits.chunk_rows_max = static_cast<uint32_t>(std::clamp<uint64_t>(rows, 1, info.chunk_rows_max));
  limits.frame_bytes_max = std::min(frame_bytes_cap, FrameBytesMax(limits.chunk_rows_max, info.boundary_width));

  const EngineMemory memory = engine.memory();
  if (memory.weight_bytes > 0) description.weight_bytes = memory.weight_bytes;
  description.kv_bytes_allocated = memory.kv_bytes;
  description.compute_bytes_allocated = memory.compute_bytes;
}

ShardCore::ShardCore(std::unique_ptr<Engine> engine, const ShardDescription& description, const Clock& clock)
    : engine_(std::move(engine)),
      description_(description),
      clock_(clock),
      kv_(ConfigOf(description), *this),
      scheduler_(SchedulerConfig{.decode_rows_max = description.limits.chunk_rows_max, .chunk_rows_max = description.limits.chunk_rows_max}),
      sampling_(engine_->info().sequences_max),
      last_step_(clock.Now()) {
  history_.reserve(kHistoryMax);
}

ShardCore::~ShardCore() = default;

std::variant<OpenReply, Refusal> ShardCore::Open(const OpenRequest& request) {
  Note('o', request.key, 0, 0, request.reserve_tokens);
  Refusal mismatch;
  if (request.model_root != description_.model_root) {
    mismatch.reason = Reason::kModelMismatch;
    mismatch.message = "serves model root " + description_.model_root.Hex().substr(0, 16) + ", not " + request.model_root.Hex().substr(0, 16);
    return Named(std::move(mismatch));
  }
  if (request.range != description_.range) {
    mismatch.reason = Reason::kRangeMismatch;
    mismatch.message = "does not serve layers " + request.range.Text();
    return Named(std::move(mismatch));
  }
  kv::OpenDecision decision = kv_.Open(request, clock_.Now());
  if (Refusal* refusal = std::get_if<Refusal>(&decision)) return Named(std::move(*refusal));
  kv::OpenAccepted& accepted = std::get<kv::OpenAccepted>(decision);
  AnswerDropped(kv_.TakeDropped());
  Perform(accepted.effects);
  last_step_ = clock_.Now();
  return accepted.reply;
}

// What the wire found wrong with the fields; behind that, what the engine thinks of the sampling, of which it sets up a sampler on trial.
std::optional<Refusal> ShardCore::CheckFields(IncomingStep& incoming) {
  if (incoming.fields) return std::move(incoming.fields);
  const Step& step = incoming.step;
  if (!step.sampling || !description_.is_tail()) return std::nullopt;
  if (Status status = engine_->CheckSampling(*step.sampling); !status.ok()) return BadSampling(status);
  return std::nullopt;
}

void ShardCore::Submit(SubmittedStep submitted, const std::shared_ptr<StepAnswerSink>& sink) {
  Step& step = submitted.incoming.step;
  const Waiter waiter{sink, submitted.request_id};
  const Time now = clock_.Now();
  Note(step.kind == StepKind::kDecode ? 'd' : 'p', step.key, step.seq.value, step.start.value, step.tokens.size());
  // Of a call that breaks off llama.cpp may leave sessions that hold nothing to begin at another cell (docs/engine.md, L14).
  const StepShape shape = step.kind == StepKind::kDecode && step.start > PastLen(0) ? StepShape::kDecode : StepShape::kChunk;
  const auto fields = [&] { return CheckFields(submitted.incoming); };
  kv::StepDecision decision = kv_.Admit(step, std::cref(fields), now);
  if (Refusal* refusal = std::get_if<Refusal>(&decision)) {
    Answer(waiter, Named(std::move(*refusal)));
  } else if (kv::StepReplayed* replayed = std::get_if<kv::StepReplayed>(&decision)) {
    Answer(waiter, RecordedResult{replayed->result, true});
  } else if (kv::StepJoined* joined = std::get_if<kv::StepJoined>(&decision)) {
    PendingStep& pending = pending_.at(joined->ticket.serial);
    if (pending.waiters.size() < kWaitersMax) {
      pending.waiters.push_back(waiter);
    } else {
      Refusal busy;
      busy.reason = Reason::kCreditExceeded;
      busy.message = "the same step was sent too often while it is queued";
      busy.retry_after = std::chrono::milliseconds(100);
      Answer(waiter, Named(std::move(busy)));
    }
  } else {
    const kv::Ticket ticket = std::get<kv::StepAdmitted>(decision).ticket;
    scheduler_.Queue(ticket, shape, static_cast<uint32_t>(step.tokens.size()));
    pending_.emplace(ticket.serial, PendingStep{ticket, std::move(step), now, {waiter}});
    last_step_ = now;
  }
}

void ShardCore::Cancel(const SessionKey& key) {
  Note('c', key);
  AnswerDropped(kv_.Cancel(key));
}

void ShardCore::EndStream(const std::shared_ptr<StepAnswerSink>& sink) {
  std::map<SessionKey, size_t> waited_for;  // queued steps that somebody else waits for
  for (auto& [serial, pending] : pending_) {
    std::erase_if(pending.waiters, [&](const Waiter& waiter) { return waiter.sink == sink; });
    waited_for[pending.ticket.key] += pending.waiters.empty() ? 0 : 1;
  }
  // All or none: a later step of a session cannot stay when an earlier one goes.
  for (const auto& [key, count] : waited_for) {
    if (count == 0) Cancel(key);
  }
  std::erase_if(answers_, [&](const auto& answer) { return answer.first == sink; });
}

ReleaseOutcome ShardCore::Release(const SessionKey& key) {
  Note('r', key);
  kv::Released released = kv_.Release(key, clock_.Now());
  AnswerDropped(std::move(released.dropped));
  Perform(released.effects);
  return released.outcome;
}

ShardStats ShardCore::Stats() const {
  ShardStats stats = kv_.Stats(clock_.Now());
  stats.engine_calls = engine_calls_;
  return stats;
}

bool ShardCore::quiet_for(Duration quiet) const {
  if (!pending_.empty()) return false;
  return clock_.Now() - last_step_ >= quiet || kv_.Stats(clock_.Now()).sessions_live == 0;
}

void ShardCore::FinishDrain() {
  kv::Expired ended = kv_.FinishDrain(clock_.Now());
  AnswerDropped(kv_.TakeDropped());
  Perform(ended.effects);
}

void ShardCore::Expire() {
  std::optional<Time> due = kv_.next_expiry();
  if (!due || clock_.Now() < *due) return;
  Perform(kv_.Expire(clock_.Now()).effects);
}

void ShardCore::Perform(const kv::Effects& effects) {
  for (SequenceId sequence : effects.removals) {
    MESHNET_CHECK(sequence.value >= 0 && static_cast<size_t>(sequence.value) < sampling_.size());
    sampling_[static_cast<size_t>(sequence.value)].reset();
    engine_->Remove(sequence);
    if (engine_->past_len(sequence) != PastLen(0)) {
      Poison("the engine still holds sequence " + std::to_string(sequence.value) + " after it was removed");
      return;
    }
    kv_.ConfirmRemoved(sequence);
  }
}

void ShardCore::AnswerDropped(std::vector<kv::Dropped> dropped) {
  for (kv::Dropped& entry : dropped) {
    scheduler_.Drop(entry.first);
    auto pending = pending_.extract(entry.first.serial);
    if (!pending.empty()) AnswerAll(pending.mapped(), Named(std::move(entry.second)));
  }
}

void ShardCore::AnswerAll(const PendingStep& pending, const Refusal& refusal) {
  for (const Waiter& waiter : pending.waiters) Answer(waiter, refusal);
}

void ShardCore::Answer(const Waiter& waiter, std::variant<RecordedResult, Refusal> outcome) {
  answers_.emplace_back(waiter.sink, StepAnswer{waiter.request_id, std::move(outcome)});
}

void ShardCore::FlushAnswers() {
  if (answers_.empty()) return;
  std::vector<std::shared_ptr<StepAnswerSink>> sinks;  // in the order of their first answer
  std::unordered_map<StepAnswerSink*, std::vector<StepAnswer>> by_sink;
  for (auto& [sink, answer] : answers_) {
    std::vector<StepAnswer>& group = by_sink[sink.get()];
    if (group.empty()) sinks.push_back(sink);
    group.push_back(std::move(answer));
  }
  answers_.clear();
  for (const std::shared_ptr<StepAnswerSink>& sink : sinks) sink->OnAnswers(std::move(by_sink[sink.get()]));
}

void ShardCore::RefuseAll(const Refusal& refusal) {
  for (auto& [serial, pending] : pending_) {
    scheduler_.Drop(pending.ticket);
    AnswerAll(pending, refusal);
  }
  pending_.clear();
}

Refusal ShardCore::Named(Refusal refusal) const {
  refusal.message = "layers " + description_.range.Text() + ": " + refusal.message;
  refusal.incarnation = description_.incarnation;
  return refusal;
}

void ShardCore::Poison(std::string why) {
  if (!poison_.empty()) return;
  poison_ = std::move(why);
  kv_.Poison();
  RefuseAll(PoisonRefusal());
}

Refusal ShardCore::PoisonRefusal() const {
  Refusal refusal;
  refusal.reason = Reason::kPoisoned;
  refusal.message = "an invariant broke: " + poison_;
  return Named(std::move(refusal));
}

void ShardCore::Note(char what, const SessionKey& key, uint64_t seq, uint64_t start, uint64_t count) {
  Record record{what, IdPrefix(key.session), key.epoch.value, seq, start, count};
  if (history_.size() < kHistoryMax) {
    history_.push_back(std::move(record));
  } else {
    history_[history_next_] = std::move(record);
    history_next_ = (history_next_ + 1) % kHistoryMax;
  }
}

std::string ShardCore::History() const {
  std::string text;
  for (size_t i = 0; i < history_.size(); ++i) {
    const Record& record = history_[(history_next_ + i) % history_.size()];
    const char* what = record.what == 'o' ? "open" : record.what == 'd' ? "decode" : record.what == 'p' ? "prefill" : record.what == 'c' ? "cancel" : "release";
    text += std::string(what) + " " + record.id_prefix + " epoch=" + std::to_string(record.epoch) + " step=" + std::to_string(record.seq) +
            " start=" + std::to_string(record.start) + " tokens=" + std::to_string(record.count) + "\n";
  }
  return text;
}

}  // namespace meshnet
