// Steps on links, waiting for their answers, cancelling: the effects of a pass.
#include <algorithm>
#include <utility>

#include "session/driver_impl.h"
#include "session/route_check.h"

namespace meshnet {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kPauseSlice = milliseconds(50);     // of Cancelled: nothing wakes a pause
constexpr Duration kDrainLimit = seconds(30);          // for what still runs when a pass is given up; then only a new epoch helps
constexpr uint32_t kLateDoublings = 5;                 // an hour, with the default time for a step
constexpr Duration kRetryAfter = seconds(1);           // told to a caller that found no room, when the stage named no time

}  // namespace

std::string DrivenSession::Impl::StageText(size_t stage) const {
  const Stage& s = view->stages[stage];
  return "stage " + std::to_string(stage) + " " + s.description.range.Text() + " at " + s.link->address();
}

std::vector<const ShardDescription*> DrivenSession::Impl::Shapes() const {
  std::vector<const ShardDescription*> shapes;
  for (const Stage& stage : view->stages) shapes.push_back(&stage.description);
  return shapes;
}

void DrivenSession::Impl::UpdatePast() { past.store(open ? journal.agreed().value : 0, std::memory_order_relaxed); }

// `reached` grows within a pass. A replay that moves is not waiting, but only what was never reached before forgives what went wrong.
void DrivenSession::Impl::Progress(Run& run, PastLen& seen, PastLen reached) {
  if (reached <= seen) return;
  seen = reached;
  run.trouble_since.reset();
  if (reached <= run.furthest) return;
  run.furthest = reached;
  late = 0;
  run.troubles.Clear();
  run.epochs = run.bug_epochs = 0;
}

bool DrivenSession::Impl::Cancelled(Run& run) {
  if (!run.cancelled && run.sink != nullptr) run.cancelled = run.sink->Cancelled();
  return run.cancelled;
}

bool DrivenSession::Impl::Pause(Run& run, Duration delay) {
  while (delay > Duration::zero()) {
    const Duration slice = std::min<Duration>(delay, kPauseSlice);
    clock.waiting().Sleep(slice);
    delay -= slice;
    if (Cancelled(run)) return false;
  }
  return true;
}

void DrivenSession::Impl::SendAll(Pass& pass, Time now) {
  while (std::optional<StepToSend> send = pass.NextSend(now)) SendStep(*send);
}

void DrivenSession::Impl::SendStep(const StepToSend& send) {
  const Time now = clock.Now();
  const Duration timeout = options.step_timeout * (1 << late);
  // The stage's own deadline comes first, so that a step which waited too long is refused by name instead of lost.
  send.step->deadline = now + timeout * 7 / 8;
  auto done = [inbox = inbox, relay = relay, serial = serial, stage = send.stage, ticket = send.ticket, now](Reply<StepResult> reply) {
    LinkAnswer answer{serial, stage, ticket, now, std::move(reply)};
    if (!relay->Take(answer)) inbox->Push(std::move(answer));
  };
  view->stages[send.stage].link->Forward(*send.step, now + timeout, std::move(done));
}

void DrivenSession::Impl::TakeAnswer(Pass& pass, LinkAnswer answer) {
  auto* reply = std::get_if<Reply<StepResult>>(&answer.reply);
  if (answer.serial != serial || reply == nullptr) return;
  if (observer && std::holds_alternative<StepResult>(*reply)) {
    observer(answer.stage, std::chrono::duration<double>(clock.Now() - answer.sent).count());
  }
  pass.OnReply(answer.stage, answer.ticket, std::move(*reply));
}

Outcome DrivenSession::Impl::RunPass(Run& run, Pass& pass) {
  ++serial;
  PastLen reached = pass.tail_end();
  for (;;) {
    const Time now = clock.Now();
    SendAll(pass, now);
    if (run.sink != nullptr && !run.generating && pass.tail_end() > reached) {
      run.sink->OnPrefill(std::min(pass.tail_end().value, run.report.prompt_tokens), run.report.prompt_tokens);
    }
    Progress(run, reached, pass.tail_end());
    if (pass.done()) {
      UpdatePast();
      return Outcome::kDone;
    }
    if (std::optional<Pass::Stuck> stuck = pass.stuck()) {
      Situation situation;
      situation.asked = Asked::kStep;
      situation.start = stuck->start;
      situation.agreed = journal.agreed();
      situation.shard_agreed = stuck->shard_agreed;
      const Action action = Judge(run, stuck->stage, stuck->trouble, situation);
      if (Resends(action.move)) {
        pass.Resend(stuck->stage, clock.Now() + action.delay);
        continue;
      }
      EndPass(pass, action.move != Move::kNewEpoch && action.move != Move::kRepairRoute && action.move != Move::kStop);
      return Act(run, action, stuck->stage, stuck->trouble);
    }
    if (Cancelled(run)) {
      EndPass(pass, true);
      return Outcome::kCancelled;
    }
    Duration patience = kPollInterval;
    if (std::optional<Time> due = pass.NextDue(now)) patience = std::min<Duration>(patience, *due - now);
    std::optional<LinkAnswer> answer;
    {
      const Relay::Opened opened(*this, pass);
      answer = inbox->Pop(patience);
    }
    relay->Rethrow();
    for (; answer; answer = inbox->Pop(Duration::zero())) TakeAnswer(pass, std::move(*answer));
  }
}

// Takes back what was sent. Without `drain` the epoch is given up anyway and late answers are ignored.
void DrivenSession::Impl::EndPass(Pass& pass, bool drain) {
  pass.Abandon();
  for (size_t stage = 0; stage < view->stages.size(); ++stage) {
    if (pass.in_flight_at(stage)) view->stages[stage].link->Cancel(key());
  }
  const Time limit = clock.Now() + kDrainLimit;
  while (drain && pass.in_flight() > 0 && !WaitOver(limit)) {
    std::optional<LinkAnswer> answer = inbox->Pop(kPollInterval);
    if (!answer || answer->serial != serial) continue;
    if (auto* reply = std::get_if<Reply<StepResult>>(&answer->reply)) pass.OnReply(answer->stage, answer->ticket, std::move(*reply));
  }
  pass.Close();
  ++serial;
  for (const StageBook& book : books) open = open && !book.unsure;
  UpdatePast();
}

Action DrivenSession::Impl::Judge(Run& run, size_t stage, const Trouble& trouble, Situation situation) {
  const auto* refusal = std::get_if<Refusal>(&trouble);
  const bool queued = refusal && refusal->reason == Reason::kDeadlineExceeded;
  if (queued) late = std::min(late + 1, kLateDoublings);
  // No answer may mean that the time was too short for the step and those in front of it, and would be so again. It is doubled only once,
  // since it is also how long a lost message goes unnoticed.
  if (std::holds_alternative<TransportFault>(trouble)) late = std::max(late, 1u);
  // The stage is busy with others, which is no trouble of the route and must not use up the patience for one.
  if (queued) return Decide(trouble, situation);
  const Time now = clock.Now();
  if (!run.trouble_since) run.trouble_since = now;
  const std::optional<PastLen> start = situation.asked == Asked::kStep ? std::optional(situation.start) : std::nullopt;
  situation.count = run.troubles.Add(stage, trouble, start);
  situation.epochs = run.epochs;
  situation.bug_epochs = run.bug_epochs;
  situation.generating = run.generating;
  situation.jitter = (id.bytes[0] * 256u + id.bytes[1]) % 1024u;
  Action action = Decide(trouble, situation);
  if (action.against_bug) ++run.bug_epochs;
  const bool ends = action.move == Move::kFail || action.move == Move::kStop || action.move == Move::kEndAtLength;
  if (ends || now - *run.trouble_since < options.recovery_limit) return action;
  const bool no_room = action.move == Move::kWaitForCapacity || action.move == Move::kNewEpoch;
  action.move = Move::kFail;
  action.failure = no_room ? AnswerFailure::Kind::kCapacity : AnswerFailure::Kind::kRouteDown;
  return action;
}

// Everything but the resends, which their callers do in place.
Outcome DrivenSession::Impl::Act(Run& run, const Action& action, size_t stage, const Trouble& trouble) {
  const std::string cause = StageText(stage) + ", epoch " + std::to_string(epoch.load()) + ": " + TroubleText(trouble);
  const auto* refusal = std::get_if<Refusal>(&trouble);
  switch (action.move) {
    case Move::kResendSame:
    case Move::kWaitForCredit:
    case Move::kWaitForCapacity:
      MESHNET_CHECK(false && "done in place");
      return Outcome::kAgain;
    case Move::kRePrefillFrom:
      run.start_limit = std::min(action.from, run.start_limit.value_or(action.from));
      // A stage that cannot be cut that short is no loss: nothing was promised.
      run.replay = run.replay || refusal == nullptr || refusal->reason != Reason::kTruncateUnsupported;
      return Outcome::kAgain;
    case Move::kNewEpoch:
      open = false;
      run.replay = true;
      UpdatePast();
      return Pause(run, action.delay) ? Outcome::kAgain : Outcome::kCancelled;
    case Move::kRepairRoute:
      open = false;
      run.replay = true;
      run.route_seen = false;
      UpdatePast();
      route.ReportLost(view->generation, cause);
      return Pause(run, action.delay) ? Outcome::kAgain : Outcome::kCancelled;
    case Move::kEndAtLength:
      return Outcome::kLength;
    case Move::kStop:
      ended.store(true, std::memory_order_relaxed);
      open = false;
      UpdatePast();
      return Fail(run, AnswerFailure::Kind::kInternal, cause + "; another route owns the session, it ends here");
    case Move::kFail:
      Fail(run, action.failure, cause);
      if (action.failure == AnswerFailure::Kind::kCapacity) {
        run.failure->retry_after = refusal != nullptr && refusal->retry_after ? *refusal->retry_after : kRetryAfter;
      }
      return Outcome::kFailed;
  }
  MESHNET_CHECK(false && "closed enum");
}

}  // namespace meshnet
