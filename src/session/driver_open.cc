// The route and the epochs of a session: looking at the route, waiting for it, opening on every stage.
#include <algorithm>
#include <utility>

#include "session/driver_impl.h"

namespace meshnet {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kReleaseTimeout = seconds(5);

}  // namespace

bool DrivenSession::Impl::SameStages(const Route::View& other) const {
  if (other.stages.size() != books.size()) return false;
  for (size_t i = 0; i < books.size(); ++i) {
    if (other.stages[i].link != open_links[i] || other.stages[i].description.incarnation != books[i].incarnation) return false;
  }
  return true;
}

Outcome DrivenSession::Impl::Ready(Run& run) {
  if (!run.route_seen) {
    const Outcome seen = SeeRoute(run);
    if (seen != Outcome::kDone) return seen;
  }
  return open ? Outcome::kDone : OpenAll(run);
}

Outcome DrivenSession::Impl::SeeRoute(Run& run) {
  for (;;) {
    const uint64_t before = route.generation();  // before the look: a repair in between is not waited for
    if (std::shared_ptr<const Route::View> now = route.view()) {
      // A repair that found the same processes changed nothing for a session that is open on them.
      open = open && SameStages(*now);
      view = std::move(now);
      run.route_seen = true;
      return Outcome::kDone;
    }
    if (!run.trouble_since) run.trouble_since = clock.Now();
    const Time deadline = *run.trouble_since + options.recovery_limit;
    const Status status = route.WaitForRepair(before, deadline, [this, &run] { return Cancelled(run); });
    if (status.ok()) continue;
    if (run.cancelled) return Outcome::kCancelled;
    return Fail(run, AnswerFailure::Kind::kRouteDown, status.message());
  }
}

void DrivenSession::Impl::TakeOpen(size_t stage, const OpenReply& reply) {
  StageBook& book = books[stage];
  book = StageBook();
  book.incarnation = reply.incarnation;
  book.acked = StepSeq(reply.next_step.value - 1);
  book.credit = reply.credit;
  context_tokens = std::min(context_tokens, reply.reserved_tokens);
  const bool agrees = reply.past_len <= journal.length() && journal.DigestAt(reply.past_len) == reply.digest;
  journal.Correct(stage, {reply.past_len, agrees ? reply.past_len : PastLen(0)});
}

// Opens the next epoch on every stage at once. What was opened before a failure is released when the run ends, or superseded by the next try.
Outcome DrivenSession::Impl::OpenAll(Run& run) {
  const size_t count = view->stages.size();
  if (epoch.load() > 0) ++run.epochs;
  epoch.fetch_add(1, std::memory_order_relaxed);
  ++serial;
  books.assign(count, StageBook());
  journal.ForgetStages(count);
  tail_sampling.reset();
  context_tokens = view->limits.context_tokens;
  open_links.clear();
  for (const Stage& stage : view->stages) open_links.push_back(stage.link);

  std::vector<Opening> openings(count);
  for (;;) {
    const Duration patience = AskOpens(openings);
    std::optional<LinkAnswer> answer = inbox->Pop(patience);
    std::optional<Outcome> outcome;
    if (answer && answer->serial == serial) outcome = TakeOpenAnswer(run, openings, std::move(*answer));
    if (!outcome && Cancelled(run)) outcome = Outcome::kCancelled;
    if (!outcome) continue;
    if (*outcome == Outcome::kCancelled || *outcome == Outcome::kFailed) AwaitOpens(openings);
    return *outcome;
  }
}

// Asks every stage that is due; returns how long to wait for an answer or for the next one that is.
Duration DrivenSession::Impl::AskOpens(std::vector<Opening>& openings) {
  const Time now = clock.Now();
  Duration patience = kPollInterval;
  for (size_t i = 0; i < openings.size(); ++i) {
    Opening& opening = openings[i];
    if (opening.state != Opening::kWaiting) continue;
    if (opening.due > now) {
      patience = std::min<Duration>(patience, opening.due - now);
      continue;
    }
    opening.state = Opening::kAsked;
    const ShardDescription& description = view->stages[i].description;
    OpenRequest request{key(), description.model_root, description.range, 0, cache_salt};
    auto done = [inbox = inbox, serial = serial, i, now](Reply<OpenReply> reply) { inbox->Push({serial, i, 0, now, std::move(reply)}); };
    // A busy stage answers between two engine calls, like a step. A dead one shows by its connection and the route's looks at it.
    open_links[i]->Open(std::move(request), now + options.step_timeout, std::move(done));
  }
  return patience;
}

// Nothing while the opening goes on.
std::optional<Outcome> DrivenSession::Impl::TakeOpenAnswer(Run& run, std::vector<Opening>& openings, LinkAnswer answer) {
  auto& reply = std::get<Reply<OpenReply>>(answer.reply);
  Opening& opening = openings[answer.stage];
  opening.state = Opening::kWaiting;
  Trouble trouble = Violation{"opened with step number 0"};
  if (const auto* opened = std::get_if<OpenReply>(&reply); opened != nullptr && opened->next_step.value > 0) {
    opening.state = Opening::kOpen;
    TakeOpen(answer.stage, *opened);
    if (!std::all_of(openings.begin(), openings.end(), [](const Opening& o) { return o.state == Opening::kOpen; })) return std::nullopt;
    open = true;
    UpdatePast();
    return Outcome::kDone;
  }
  if (auto* refusal = std::get_if<Refusal>(&reply)) trouble = std::move(*refusal);
  if (auto* fault = std::get_if<TransportFault>(&reply)) trouble = std::move(*fault);
  Situation situation;
  situation.asked = Asked::kOpen;
  const Action action = Judge(run, answer.stage, trouble, situation);
  if (!Resends(action.move)) return Act(run, action, answer.stage, trouble);
  opening.due = clock.Now() + action.delay;
  return std::nullopt;
}

// A Release does not wait for an Open that is still on its way, so the answers are waited for before one is sent.
void DrivenSession::Impl::AwaitOpens(const std::vector<Opening>& openings) {
  auto asked = std::count_if(openings.begin(), openings.end(), [](const Opening& o) { return o.state == Opening::kAsked; });
  const Time limit = clock.Now() + kReleaseTimeout;
  while (asked > 0 && !WaitOver(limit)) {
    std::optional<LinkAnswer> answer = inbox->Pop(kPollInterval);
    if (answer && answer->serial == serial) --asked;
  }
}

// For a session that is not open any more: what some stages still hold of it goes, as far as they hear of it.
void DrivenSession::Impl::ReleaseQuietly() {
  for (ShardLink* link : open_links) link->Release(key(), clock.Now() + kReleaseTimeout, [](Reply<ReleaseOutcome>) {});
  open_links.clear();
}

}  // namespace meshnet
