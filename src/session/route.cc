#include "session/route.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/waiting.h"
#include "session/route_check.h"
#include "session/route_verdict.h"

namespace meshnet {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kBackoffFirst = milliseconds(50);
constexpr Duration kBackoffLast = milliseconds(250);  // a worker that came back is a pause for every answer
constexpr Duration kRepairTimeout = seconds(2);   // of one Describe while the route is broken
constexpr Duration kWatchInterval = seconds(2);   // between looks at a route that serves
constexpr Duration kWatchTimeout = seconds(10);
constexpr uint32_t kWatchMissesMax = 2;           // silent looks in a row before a serving route is called broken
constexpr Duration kPollInterval = milliseconds(50);
// A link answers at its deadline at the latest; this much later it is taken for broken, so that nobody hangs on it.
constexpr Duration kLinkGrace = seconds(2);

// The answers of one round; shared with the callbacks, which may come after the round was given up.
struct Round {
  std::mutex mutex;
  std::condition_variable answered;
  std::vector<std::optional<Reply<ShardDescription>>> replies;
  size_t missing = 0;
  bool abandoned = false;  // nobody wants to know any more
};

std::vector<Reply<ShardDescription>> DescribeAll(const std::shared_ptr<Round>& round, const std::vector<ShardLink*>& links, const Clock& clock,
                                                 Duration patience) {
  round->replies.resize(links.size());
  round->missing = links.size();
  Waiting& waiting = clock.waiting();
  const Time deadline = clock.Now() + patience;
  for (size_t i = 0; i < links.size(); ++i) {
    links[i]->Describe(deadline, [round, i, &waiting](Reply<ShardDescription> reply) {
      {
        std::lock_guard lock(round->mutex);
        round->replies[i] = std::move(reply);
        --round->missing;
      }
      waiting.Notify(round->answered);
    });
  }
  std::unique_lock lock(round->mutex);
  waiting.WaitFor(round->answered, lock, patience + kLinkGrace, [&] { return round->missing == 0 || round->abandoned; });
  std::vector<Reply<ShardDescription>> replies;
  for (std::optional<Reply<ShardDescription>>& reply : round->replies) {
    replies.push_back(reply ? std::move(*reply) : Reply<ShardDescription>(TransportFault{"no answer in time"}));
  }
  return replies;
}

}  // namespace

const char* Name(RouteState state) {
  switch (state) {
    case RouteState::kConnecting: return "connecting";
    case RouteState::kServing: return "serving";
    case RouteState::kBroken: return "broken";
    case RouteState::kDraining: return "draining";
    case RouteState::kRefused: return "refused";
  }
  MESHNET_CHECK(false && "closed enum");
}

struct Route::Impl {
  Impl(std::vector<ShardLink*> l, const Clock& c) : links(std::move(l)), clock(c) {
    for (ShardLink* link : links) members.push_back({link->address(), std::nullopt});
  }

  ~Impl() {
    std::shared_ptr<Round> running;
    {
      std::lock_guard lock(mutex);
      stopping = true;
      running = round;
    }
    clock.waiting().Notify(changed);
    if (running) {
      {
        std::lock_guard lock(running->mutex);
        running->abandoned = true;
      }
      clock.waiting().Notify(running->answered);
    }
    repairer.reset();
  }

  // One round, judged and published. Rounds never overlap. `silence_counts` is false for a look that may be missed.
  Status Attempt(Duration timeout, bool silence_counts);
  void Publish(const std::vector<Reply<ShardDescription>>& replies, RouteVerdict verdict);
  bool SameStages(const std::vector<Reply<ShardDescription>>& replies) const;
  void StartRepairer();
  void Repair();

  const std::vector<ShardLink*> links;
  const Clock& clock;

  std::mutex round_mutex;  // held for a whole round, taken before `mutex`: guards `members`, `model_root`
  std::vector<RouteMember> members;
  std::optional<Sha256Digest> model_root;

  mutable std::mutex mutex;  // guards everything below
  std::condition_variable changed;
  RouteState state = RouteState::kConnecting;
  Status status = PeerUnreachable("the route has not been connected yet");
  std::shared_ptr<const View> view;  // shared: callers go on with theirs while a newer one is published
  std::vector<std::string> warnings;
  uint64_t generation = 0;
  uint64_t reports = 0;  // of a lost stage; a round that began before the newest one does not count
  bool stopping = false;
  std::shared_ptr<Round> round;  // the latest; shared with the callbacks of its questions
  std::unique_ptr<Waiting::Background> repairer;  // destroyed first: it uses all of the above
};

bool Route::Impl::SameStages(const std::vector<Reply<ShardDescription>>& replies) const {
  for (const Stage& stage : view->stages) {
    const auto link = std::find(links.begin(), links.end(), stage.link);
    const auto& now = std::get<ShardDescription>(replies[static_cast<size_t>(link - links.begin())]);
    if (now.incarnation != stage.description.incarnation) return false;
  }
  return true;
}

// Under `mutex`.
void Route::Impl::Publish(const std::vector<Reply<ShardDescription>>& replies, RouteVerdict verdict) {
  status = verdict.status;
  if (verdict.state != RouteState::kServing) {
    // Before the first success a broken route is one that still connects.
    state = verdict.state == RouteState::kBroken && generation == 0 ? RouteState::kConnecting : verdict.state;
    view = nullptr;
    return;
  }
  const bool unchanged = state == RouteState::kServing && SameStages(replies);
  state = RouteState::kServing;
  if (unchanged) return;
  auto next = std::make_shared<View>();
  for (size_t index : verdict.order) next->stages.push_back({links[index], std::get<ShardDescription>(replies[index])});
  next->limits = LimitsOf(next->stages);
  next->generation = ++generation;
  view = std::move(next);
  warnings = std::move(verdict.warnings);
}

Status Route::Impl::Attempt(Duration timeout, bool silence_counts) {
  std::lock_guard alone(round_mutex);
  auto mine = std::make_shared<Round>();
  uint64_t reports_before = 0;
  {
    std::lock_guard lock(mutex);
    if (stopping) return PeerUnreachable("the route is being closed");
    reports_before = reports;
    round = mine;
  }
  std::vector<Reply<ShardDescription>> replies = DescribeAll(mine, links, clock, timeout);
  bool silent = false;
  for (size_t i = 0; i < replies.size(); ++i) {
    const auto* description = std::get_if<ShardDescription>(&replies[i]);
    if (description != nullptr && !description->range.empty()) members[i].known = *description;
    silent = silent || std::holds_alternative<TransportFault>(replies[i]);
  }
  RouteVerdict verdict = JudgeRoute(members, replies, model_root);
  const Status result = verdict.status;
  if (verdict.state == RouteState::kServing) model_root = members[verdict.order.front()].known->model_root;
  {
    std::lock_guard lock(mutex);
    if (silent && !silence_counts) return result;
    // What was asked before a caller saw a stage fail proves nothing about it now.
    if (reports != reports_before && verdict.state == RouteState::kServing) return PeerUnreachable("a stage was lost while the route was looked at");
    Publish(replies, std::move(verdict));
  }
  clock.waiting().Notify(changed);
  return result;
}

void Route::Impl::StartRepairer() {
  std::lock_guard lock(mutex);
  if (repairer || stopping) return;
  try {
    repairer = clock.waiting().Start([this] { Repair(); });
  } catch (const std::system_error&) {  // no thread can be started now; whoever waits for the route asks again
  }
}

// Looks after the route for its whole life: now and then while it serves, quickly while it does not.
void Route::Impl::Repair() {
  Duration backoff = kBackoffFirst;
  uint32_t misses = 0;
  std::unique_lock lock(mutex);
  while (!stopping) {
    const bool serving = state == RouteState::kServing;
    if (serving) {
      backoff = kBackoffFirst;
      // A stage that was silent just now is asked again at once: with nobody else asking, its death is known after one interval.
      const Duration pause = misses > 0 ? kBackoffFirst : kWatchInterval;
      clock.waiting().WaitFor(changed, lock, pause, [&] { return stopping || state != RouteState::kServing; });
      if (stopping) return;
    }
    const bool watching = state == RouteState::kServing;
    lock.unlock();
    const Status result = Attempt(watching ? kWatchTimeout : kRepairTimeout, !watching || misses + 1 >= kWatchMissesMax);
    lock.lock();
    misses = watching && !result.ok() ? misses + 1 : 0;
    if (state == RouteState::kServing) continue;
    clock.waiting().WaitFor(changed, lock, backoff, [&] { return stopping; });
    backoff = std::min<Duration>(backoff * 2, kBackoffLast);
  }
}

Route::Route(std::vector<ShardLink*> links, const Clock& clock) : impl_(std::make_unique<Impl>(std::move(links), clock)) {}

Route::~Route() = default;

Status Route::Connect(Duration timeout) {
  Status status = impl_->Attempt(timeout, true);
  impl_->StartRepairer();
  return status;
}

std::shared_ptr<const Route::View> Route::view() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->view;
}

RouteState Route::state() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->state;
}

std::string Route::trouble() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->state == RouteState::kServing ? "" : impl_->status.message();
}

std::vector<std::string> Route::warnings() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->warnings;
}

uint64_t Route::generation() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->generation;
}

void Route::ReportLost(uint64_t generation, const std::string& cause) {
  {
    std::lock_guard lock(impl_->mutex);
    if (generation != impl_->generation || impl_->state != RouteState::kServing) return;
    impl_->state = RouteState::kBroken;
    impl_->status = PeerUnreachable(cause);
    impl_->view = nullptr;
    ++impl_->reports;
  }
  impl_->clock.waiting().Notify(impl_->changed);
  impl_->StartRepairer();
}

Status Route::WaitForRepair(uint64_t generation, Time deadline, const std::function<bool()>& cancelled) {
  impl_->StartRepairer();
  for (;;) {
    {
      std::unique_lock lock(impl_->mutex);
      auto settled = [&] {
        return (impl_->state == RouteState::kServing && impl_->generation > generation) || impl_->state == RouteState::kRefused;
      };
      impl_->clock.waiting().WaitFor(impl_->changed, lock, kPollInterval, settled);
      if (settled()) return impl_->status;
      if (impl_->clock.Now() >= deadline) {
        return PeerUnreachable(impl_->status.ok() ? "the route serves, but no newer generation of it came in time" : impl_->status.message());
      }
    }
    if (cancelled && cancelled()) return Failure("cancelled while waiting for the route");
  }
}

}  // namespace meshnet
