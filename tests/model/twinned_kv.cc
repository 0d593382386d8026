#include "twinned_kv.h"

#include <charconv>
#include <sstream>
#include <utility>

namespace meshnet::kv {
namespace {

// Every figure of an answer. Not its words for people, and of a delay only that there is one.
struct Writer {
  std::string& text;
  bool readable;  // or only to be compared

  void Add(const char* key, uint64_t value) {
    char digits[24];
    text.append(" ").append(key).append("=").append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
  }
  template <typename Tag, size_t N>
  void Add(const Bytes<Tag, N>& bytes) {
    if (readable) {
      text.append(" ").append(bytes.Hex());
    } else {
      text.append(reinterpret_cast<const char*>(bytes.bytes.data()), N);
    }
  }
  void Add(const Refusal& refusal) {
    text.append(" refused ").append(Name(refusal.reason)).append(" ").append(Name(refusal.detail));
    Add("fence", refusal.fence.value);
    Add(refusal.incarnation);
    if (refusal.session) {
      Add("past", refusal.session->past_len.value), Add("next", refusal.session->next_step.value);
      Add("max", refusal.session->step_seq_max.value);
      Add(refusal.session->digest);
    }
    if (refusal.nearest_past_len) Add("nearest", refusal.nearest_past_len->value);
    if (refusal.retry_after) Add("retry", *refusal.retry_after > Duration::zero());
  }
  void Add(const Ticket& ticket) {
    Add(ticket.key.session);
    Add("epoch", ticket.key.epoch.value), Add("step", ticket.seq.value), Add("serial", ticket.serial);
  }
  void Add(const std::vector<Dropped>& dropped) {
    for (const auto& [ticket, refusal] : dropped) text.append("\n  dropped"), Add(ticket), Add(refusal);
  }
  void Add(const Effects& effects) {
    for (const SequenceId sequence : effects.removals) Add("removes", static_cast<uint64_t>(sequence.value));
  }
  void Add(const Credit& credit) { Add("credit", credit.step_seq_max.value), Add("pending", credit.pending_tokens_max); }
  void Add(const StepResult& result) {
    Add("step", result.seq.value), Add("replayed", result.replayed), Add("past", result.past_len.value);
    Add(result.digest), Add(result.credit), Add("reserved", result.kv_tokens_reserved);
    Add("queue_us", static_cast<uint64_t>(result.queue_time.count())), Add("compute_us", static_cast<uint64_t>(result.compute_time.count()));
    Add("rows", result.output.rows()), Add("width", result.output.width());
    text.append(reinterpret_cast<const char*>(result.output.values().data()), result.output.values().size_bytes());
    for (const SampledToken& sampled : result.sampled) Add("sampled", static_cast<uint64_t>(sampled.token));
  }
  void Add(const OpenDecision& decision) {
    if (const Refusal* refusal = std::get_if<Refusal>(&decision)) return Add(*refusal);
    const OpenAccepted& accepted = std::get<OpenAccepted>(decision);
    Add("past", accepted.reply.past_len.value), Add("next", accepted.reply.next_step.value), Add("reserved", accepted.reply.reserved_tokens);
    Add(accepted.reply.incarnation), Add(accepted.reply.digest), Add(accepted.reply.credit);
    if (accepted.reply.superseded) Add("superseded", accepted.reply.superseded->value);
    Add(accepted.effects);
  }
  void Add(const StepDecision& decision) {
    if (const StepAdmitted* admitted = std::get_if<StepAdmitted>(&decision)) return text.append(" admitted"), Add(admitted->ticket);
    if (const StepJoined* joined = std::get_if<StepJoined>(&decision)) return text.append(" joined"), Add(joined->ticket);
    if (const StepReplayed* replayed = std::get_if<StepReplayed>(&decision)) return text.append(" replayed"), Add(*replayed->result);
    Add(std::get<Refusal>(decision));
  }
  void Add(const std::optional<Execution>& execution) {
    if (!execution) return;
    Add("sequence", static_cast<uint64_t>(execution->sequence.value)), Add("start", execution->start.value), Add("truncate", execution->truncate);
  }
  void Add(const Settled& settled) {
    if (settled.result) Add(*settled.result);
    if (settled.refusal) Add(*settled.refusal);
    Add(settled.dropped), Add(settled.effects);
  }
  void Add(const Released& released) { text.append(Name(released.outcome)), Add(released.dropped), Add(released.effects); }
  void Add(const Expired& expired) { Add(expired.effects); }
  void Add(const ShardStats& stats) {
    text.append(Name(stats.state));
    Add(stats.incarnation), Add("live", stats.sessions_live), Add("busy", stats.sessions_busy), Add("reserved", stats.kv_tokens_reserved);
    Add("used", stats.kv_tokens_used), Add("free", stats.sequences_free), Add("queued", stats.steps_queued);
    Add("ttl", stats.evictions_ttl), Add("lru", stats.evictions_lru), Add("superseded", stats.evictions_superseded);
    Add("lost", stats.sessions_lost), Add("replays", stats.replays), Add("steps", stats.steps_committed), Add("tokens", stats.tokens_committed);
    for (const auto& [reason, count] : stats.refusals) Add(reason.c_str(), count);
    for (const ShardSessionStats& session : stats.sessions) {
      text.append("\n  ").append(session.id_prefix);
      Add("epoch", session.epoch.value), Add("past", session.past_len.value), Add("reserved", session.reserved_tokens);
      Add("busy", session.busy), Add("idle_us", static_cast<uint64_t>(session.idle_seconds * 1e6 + 0.5));
    }
  }
};

template <typename Answer>
void Write(const Answer& answer, bool readable, std::string& text) {
  text.clear();
  Writer{text, readable}.Add(answer);
}

// The lines in which two texts differ, from the first on.
std::string Difference(const std::string& machine, const std::string& model) {
  std::istringstream left(machine), right(model);
  std::string a, b;
  do {
    if (!std::getline(left, a)) a = "(nothing)";
    if (!std::getline(right, b)) b = "(nothing)";
  } while (a == b && (left || right));
  return "\n  machine: " + a + "\n  model:   " + b;
}

bool refused(const OpenDecision& decision) { return std::holds_alternative<Refusal>(decision); }

}  // namespace

TwinnedKv::TwinnedKv(const HotKvConfig& config, const SequenceProbe& probe)
    : kv_(config, probe), model_(config, probe), snapshot_(kv_.Snapshot()) {}

template <typename Answer>
void TwinnedKv::Compare(const Answer& machine, const Answer& model, bool unchanged) {
  if (watch_ == Watch::kNothing) return;
  thread_local std::string said, expected;
  Write(machine, false, said);
  Write(model, false, expected);
  if (said != expected) {
    Write(machine, true, said);
    Write(model, true, expected);
    Problem("the answers differ" + Difference(said, expected));
  }
  AfterCall(unchanged);
}

void TwinnedKv::AfterCall(bool unchanged) {
  if (watch_ == Watch::kEverything) CompareState(unchanged ? State::kUnchanged : State::kAny);
}

void TwinnedKv::CompareState(State state) {
  kv_.CheckInvariants();
  std::string now = kv_.Snapshot();
  if (const std::string expected = model_.Snapshot(); now != expected) Problem("the states differ" + Difference(now, expected));
  if (kv_.next_expiry() != model_.next_expiry()) Problem("what expires next differs");
  changed_ = now != snapshot_;
  if (state == State::kUnchanged && changed_) Problem("it changed the state" + Difference(now, snapshot_));
  snapshot_ = std::move(now);
}

void TwinnedKv::Problem(const std::string& problem) {
  if (problem_.empty()) problem_ = problem;
}

OpenDecision TwinnedKv::Open(const OpenRequest& request, Time now) {
  const bool query = model_.Find(request.key) != nullptr;
  OpenDecision decision = kv_.Open(request, now);
  Compare(decision, model_.Open(request, now), query || refused(decision));
  return decision;
}

StepDecision TwinnedKv::Admit(const Step& step, const FieldsCheck& fields, Time now) {
  const StepDecision expected = model_.Admit(step, fields ? fields() : std::nullopt, now);
  StepDecision decision = kv_.Admit(step, fields, now);
  Compare(decision, expected, !std::holds_alternative<StepAdmitted>(decision));
  return decision;
}

// Where a call out of turn aborts, the machine is asked first, so that its own claim is the one that is printed.
std::optional<Execution> TwinnedKv::Start(const Ticket& ticket, Time now) {
  const std::optional<Execution> execution = kv_.Start(ticket, now);
  Compare(execution, model_.Start(ticket, now));
  return execution;
}

Settled TwinnedKv::Settle(const Ticket& ticket, StepFate fate, std::shared_ptr<StepResult> result, std::string cause, Time now) {
  StepResult copy;
  if (result) {
    copy.output = result->output.Copy();
    copy.sampled = result->sampled;
    copy.queue_time = result->queue_time;
    copy.compute_time = result->compute_time;
  }
  Settled settled = kv_.Settle(ticket, fate, std::move(result), std::move(cause), now);
  Compare(settled, model_.Settle(ticket, fate, std::move(copy), now));
  return settled;
}

std::vector<Dropped> TwinnedKv::Cancel(const SessionKey& key) {
  std::vector<Dropped> dropped = kv_.Cancel(key);
  Compare(dropped, model_.Cancel(key), dropped.empty());
  return dropped;
}

Released TwinnedKv::Release(const SessionKey& key, Time now) {
  Released released = kv_.Release(key, now);
  const bool harmless = released.outcome == ReleaseOutcome::kNotFound || released.outcome == ReleaseOutcome::kEpochStale;
  Compare(released, model_.Release(key, now), harmless);
  return released;
}

Expired TwinnedKv::Expire(Time now) {
  Expired expired = kv_.Expire(now);
  Compare(expired, model_.Expire(now));
  return expired;
}

void TwinnedKv::ConfirmRemoved(SequenceId sequence) {
  kv_.ConfirmRemoved(sequence);
  model_.ConfirmRemoved(sequence);
  AfterCall(false);
}

void TwinnedKv::BeginDrain() {
  kv_.BeginDrain();
  model_.BeginDrain();
  AfterCall(false);
}

Expired TwinnedKv::FinishDrain(Time now) {
  Expired expired = kv_.FinishDrain(now);
  Compare(expired, model_.FinishDrain(now));
  return expired;
}

void TwinnedKv::Poison() {
  kv_.Poison();
  model_.Poison();
  AfterCall(false);
}

std::vector<Dropped> TwinnedKv::TakeDropped() {
  std::vector<Dropped> dropped = kv_.TakeDropped();
  Compare(dropped, model_.TakeDropped());
  return dropped;
}

ShardStats TwinnedKv::Stats(Time now) {
  ShardStats stats = kv_.Stats(now);
  Compare(stats, model_.Stats(now), true);
  return stats;
}

}  // namespace meshnet::kv
