#include "session/session_driver.h"

#include <algorithm>
#include <utility>

#include "base/system_clock.h"
#include "session/chunk_plan.h"
#include "session/driver_impl.h"

namespace meshnet {

DrivenSession::Impl::Impl(Route& r, const Clock& c, DriverOptions o, std::string salt, HopObserver h, SessionKey name)
    : route(r),
      clock(c),
      options(o),
      cache_salt(std::move(salt)),
      observer(std::move(h)),
      id(name.session),
      epoch(name.epoch.value),
      journal(cache_salt),
      inbox(std::make_shared<Inbox<LinkAnswer>>(clock.waiting())),
      relay(std::make_shared<Relay>()) {}

Outcome DrivenSession::Impl::Fail(Run& run, AnswerFailure::Kind kind, std::string message) {
  run.failure = AnswerFailure{kind, std::move(message), std::nullopt};
  return Outcome::kFailed;
}

std::vector<StageReach> DrivenSession::Impl::Reach() const {
  std::vector<StageReach> reach;
  for (size_t i = 0; i < books.size(); ++i) reach.push_back({journal.stages()[i], view->stages[i].description.truncation_class});
  return reach;
}

bool DrivenSession::Impl::StartsAtEveryPast(PastLen start) const {
  return std::all_of(journal.stages().begin(), journal.stages().end(), [start](const StageHeld& held) { return held.past == start; });
}

void DrivenSession::Impl::MarkBoundaries(const PassPlan& plan, PastLen limit) {
  for (const Chunk& chunk : plan.chunks) {
    const bool is_new = journal.boundaries().empty() || journal.boundaries().back() < chunk.end();
    if (is_new && chunk.end() <= limit) journal.MarkBoundary(chunk.end());
  }
}

PassPlan DrivenSession::Impl::PlanAnswer(Run& run, const SamplingParams& sampling, uint32_t prompt_tokens) {
  const PastLen end = journal.length();
  // The last token is always computed, even if it is held already: its logits are what comes next.
  PastLen limit(end.value - 1);
  if (run.start_limit) limit = std::min(limit, *run.start_limit);
  run.start_limit.reset();
  const PastLen start = ChooseStart(Reach(), limit);
  if (!run.generating) run.report.cached_tokens = std::min(run.report.cached_tokens, start.value);
  if (run.replay) ++run.report.replays;
  run.replay = false;

  uint32_t rows = view->limits.chunk_rows_max;
  if (options.chunk_rows > 0) rows = std::min(rows, options.chunk_rows);
  PassPlan plan;
  plan.chunks = PlanChunks(start, end, rows, journal.boundaries());
  plan.chunks_in_flight_max =
      options.pipelined_chunks > 0 ? options.pipelined_chunks : std::max<uint32_t>(2, static_cast<uint32_t>(books.size()));
  plan.decode = end.value - start.value == 1 && start.value >= prompt_tokens && StartsAtEveryPast(start);
  if (tail_sampling != sampling) plan.sampling = sampling;
  MarkBoundaries(plan, PastLen(prompt_tokens));
  return plan;
}

Outcome DrivenSession::Impl::Deliver(Run& run, SampledToken token, uint32_t tokens_max) {
  journal.Append(std::span(&token.token, 1));
  run.generating = true;
  ++run.report.generated_tokens;
  const SinkVerdict verdict = run.sink->OnToken(token);
  if (token.end_of_generation) {
    run.report.end = AnswerEnd::kEndOfGeneration;
  } else if (verdict == SinkVerdict::kStop) {
    run.report.end = AnswerEnd::kStopped;
  } else if (tokens_max > 0 && run.report.generated_tokens >= tokens_max) {
    run.report.end = AnswerEnd::kLength;
  } else {
    return Outcome::kAgain;
  }
  return Outcome::kDone;
}

Outcome DrivenSession::Impl::AnswerLoop(Run& run, const AnswerRequest& request) {
  SamplingParams sampling = request.sampling;
  sampling.prompt_len = PastLen(static_cast<uint32_t>(request.prompt.size()));
  for (;;) {
    if (Cancelled(run)) return Outcome::kCancelled;
    const Outcome ready = Ready(run);
    if (ready == Outcome::kAgain) continue;
    if (ready != Outcome::kDone) return ready;
    if (request.prompt.size() > context_tokens) {
      return Fail(run, AnswerFailure::Kind::kContextExceeded,
                  "the prompt has " + std::to_string(request.prompt.size()) + " tokens, a session of this route holds " +
                      std::to_string(context_tokens));
    }
    if (journal.length().value > context_tokens) return Outcome::kLength;
    PassPlan plan = PlanAnswer(run, sampling, sampling.prompt_len.value);
    const bool brings_sampling = plan.sampling.has_value();
    Pass pass(std::move(plan), key(), journal, books, Shapes());
    const Outcome outcome = RunPass(run, pass);
    if (outcome == Outcome::kAgain) continue;
    if (outcome != Outcome::kDone) return outcome;
    if (brings_sampling) tail_sampling = sampling;
    const Outcome delivered = Deliver(run, pass.TakeToken(), request.tokens_max);
    if (delivered != Outcome::kAgain) return delivered;
  }
}

// Leaves nothing behind on the stages of a session that is not open any more.
void DrivenSession::Impl::EndRun(Run&) {
  if (!open && epoch.load() > 0 && !ended.load()) ReleaseQuietly();
  UpdatePast();
}

std::optional<AnswerFailure> DrivenSession::Impl::CheckLogits(size_t token_count) const {
  const auto refuse = [](std::string message) { return AnswerFailure{AnswerFailure::Kind::kBadRequest, std::move(message), std::nullopt}; };
  const uint32_t rows = view->limits.chunk_rows_max;
  if (token_count > rows) {
    return refuse("a chunk of " + std::to_string(token_count) + " tokens, a step of this route has at most " + std::to_string(rows));
  }
  return std::nullopt;
}

Outcome DrivenSession::Impl::LogitsLoop(Run& run, PastLen base, HiddenState& logits) {
  for (;;) {
    const Outcome ready = Ready(run);
    if (ready == Outcome::kAgain) continue;
    if (ready != Outcome::kDone) return ready;
    const Chunk chunk{base, journal.length().value - base.value};
    if ((run.failure = CheckLogits(chunk.count))) return Outcome::kFailed;
    if (chunk.end().value > context_tokens) {
      return Fail(run, AnswerFailure::Kind::kContextExceeded,
                  "the chunk ends at " + std::to_string(chunk.end().value) + ", a session of this route holds " + std::to_string(context_tokens));
    }
    const PastLen start = ChooseStart(Reach(), std::min(base, run.start_limit.value_or(base)));
    run.start_limit.reset();
    PassPlan plan;
    plan.chunks = PlanChunks(start, base, view->limits.chunk_rows_max, journal.boundaries());
    plan.chunks.push_back(chunk);
    plan.decode = plan.chunks.size() == 1 && chunk.count == 1 && StartsAtEveryPast(start);
    plan.yield = PassPlan::Yield::kLogits;
    MarkBoundaries(plan, chunk.end());
    Pass pass(std::move(plan), key(), journal, books, Shapes());
    const Outcome outcome = RunPass(run, pass);
    if (outcome == Outcome::kAgain) continue;
    if (outcome == Outcome::kDone) logits = pass.TakeLogits();
    return outcome;
  }
}

DrivenSession::DrivenSession(Route& route, const Clock& clock, DriverOptions options, std::string cache_salt, HopObserver observer)
    : impl_(std::make_unique<Impl>(route, clock, options, std::move(cache_salt), std::move(observer),
                                   options.name ? options.name() : SessionKey{RandomId<SessionId>(), Epoch(0)})) {}

DrivenSession::~DrivenSession() = default;

std::variant<AnswerReport, AnswerFailure> DrivenSession::Answer(const AnswerRequest& request, AnswerSink& sink) {
  Impl& s = *impl_;
  if (s.ended.load()) return AnswerFailure{AnswerFailure::Kind::kInternal, "another route owns the session, it has ended here", std::nullopt};
  if (request.prompt.empty()) return AnswerFailure{AnswerFailure::Kind::kBadRequest, "the prompt has no tokens", std::nullopt};
  Run run;
  run.sink = &sink;
  run.report.prompt_tokens = static_cast<uint32_t>(request.prompt.size());
  run.report.cached_tokens = run.report.prompt_tokens;
  s.journal.Rewrite(request.prompt);
  const Outcome outcome = s.AnswerLoop(run, request);
  s.EndRun(run);
  if (outcome == Outcome::kFailed) {
    // Of a prompt that was not computed to its end nothing is known.
    if (!run.generating) run.report.prompt_tokens = run.report.cached_tokens = 0;
    run.failure->report = run.report;
    return std::move(*run.failure);
  }
  if (outcome == Outcome::kCancelled) run.report.end = AnswerEnd::kCancelled;
  if (outcome == Outcome::kLength) run.report.end = AnswerEnd::kLength;
  return run.report;
}

std::variant<HiddenState, AnswerFailure> DrivenSession::ForwardLogits(std::span<const Token> tokens) {
  Impl& s = *impl_;
  if (s.ended.load()) return AnswerFailure{AnswerFailure::Kind::kInternal, "another route owns the session, it has ended here", std::nullopt};
  if (tokens.empty()) return AnswerFailure{AnswerFailure::Kind::kBadRequest, "the chunk has no tokens", std::nullopt};
  if (s.open) s.journal.Truncate(s.journal.agreed());  // an answer's last token was sampled, but never computed
  const PastLen base = s.journal.length();
  s.journal.Append(tokens);
  Run run;
  HiddenState logits;
  const Outcome outcome = s.LogitsLoop(run, base, logits);
  if (outcome != Outcome::kDone) s.journal.Truncate(base);
  s.EndRun(run);
  if (outcome == Outcome::kDone) return logits;
  if (run.failure) return std::move(*run.failure);
  return AnswerFailure{AnswerFailure::Kind::kContextExceeded, "the context of the session is full", std::nullopt};
}

void DrivenSession::Release(Duration timeout) {
  Impl& s = *impl_;
  const Time deadline = s.clock.Now() + timeout;
  const uint64_t serial = ++s.serial;
  size_t missing = s.open_links.size();
  for (size_t i = 0; i < s.open_links.size(); ++i) {
    s.open_links[i]->Release(s.key(), deadline, [inbox = s.inbox, serial, i, deadline](Reply<ReleaseOutcome> reply) {
      inbox->Push({serial, i, 0, deadline, std::move(reply)});
    });
  }
  s.open_links.clear();
  s.open = false;
  s.UpdatePast();
  while (missing > 0 && !s.WaitOver(deadline)) {
    std::optional<LinkAnswer> answer = s.inbox->Pop(std::min<Duration>(deadline - s.clock.Now(), kPollInterval));
    if (answer && answer->serial == serial) --missing;
  }
}

void DrivenSession::Wake() { impl_->inbox->Wake(); }
void DrivenSession::HurryBy(Time limit) {
  impl_->hurry_limit.store(limit, std::memory_order_relaxed);
  Wake();
}

const SessionId& DrivenSession::id() const { return impl_->id; }
Epoch DrivenSession::epoch() const { return Epoch(impl_->epoch.load(std::memory_order_relaxed)); }
PastLen DrivenSession::past_len() const { return PastLen(impl_->past.load(std::memory_order_relaxed)); }
std::span<const Token> DrivenSession::journal() const { return impl_->journal.tokens().first(impl_->past.load(std::memory_order_relaxed)); }
bool DrivenSession::ended() const { return impl_->ended.load(std::memory_order_relaxed); }

}  // namespace meshnet
