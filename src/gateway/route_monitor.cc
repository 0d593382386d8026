#include "gateway/route_monitor.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "gateway/request_log.h"

namespace meshnet::gateway {
namespace {

constexpr Duration kSayInterval = std::chrono::seconds(10);
constexpr Duration kNotReadyPause = std::chrono::milliseconds(50);
constexpr int kCanaryTries = 4;  // two equal ones in a row are needed
// No user's owner name has a control character in front.
constexpr const char* kCanaryOwner = "\1canary";
constexpr const char* kBeingProven = "the route has new workers and is being proven";

// The answers of one round; shared with the links' callbacks, which may come after the round was given up.
struct Round {
  std::mutex mutex;
  std::condition_variable changed;
  size_t missing = 0;
  std::vector<std::optional<ShardDescription>> descriptions;
  std::vector<std::optional<ShardStats>> stats;
};

template <typename T>
void Note(const std::shared_ptr<Round>& round, std::optional<T>& place, Reply<T>& reply) {
  {
    std::lock_guard lock(round->mutex);
    if (auto* value = std::get_if<T>(&reply)) place = std::move(*value);
    --round->missing;
  }
  round->changed.notify_one();
}

std::vector<Incarnation> IncarnationsOf(const Route::View& view) {
  std::vector<Incarnation> incarnations;
  for (const Stage& stage : view.stages) incarnations.push_back(stage.description.incarnation);
  return incarnations;
}

class CanarySink : public AnswerSink {
 public:
  explicit CanarySink(const std::function<bool()>& cancelled) : cancelled_(cancelled) {}
  SinkVerdict OnToken(const SampledToken& token) override {
    sampled = token;
    return SinkVerdict::kStop;
  }
  bool Cancelled() override { return cancelled_(); }
  std::optional<SampledToken> sampled;

 private:
  const std::function<bool()>& cancelled_;
};

}  // namespace

RouteMonitor::RouteMonitor(Route& route, std::vector<ShardLink*> links, SessionPool& pool, Metrics& metrics, const Clock& clock,
                           MonitorOptions options)
    : route_(route), links_(std::move(links)), pool_(pool), metrics_(metrics), clock_(clock), options_(std::move(options)) {
  for (ShardLink* link : links_) workers_.push_back({link->address(), std::nullopt, std::nullopt, false});
  thread_ = std::thread([this] { Loop(); });
  try {
    prover_ = std::thread([this] { ProveLoop(); });
  } catch (...) {  // no more threads: the one that runs must not outlive its object
    Stop();
    throw;
  }
}

RouteMonitor::~RouteMonitor() { Stop(); }

void RouteMonitor::BeginStop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
}

void RouteMonitor::Stop() {
  BeginStop();
  for (std::thread* thread : {&thread_, &prover_}) {
    if (thread->joinable()) thread->join();
  }
}

std::string RouteMonitor::not_ready() const {
  // The route itself knows first when an answer hits a dead stage.
  const std::shared_ptr<const Route::View> view = route_.view();
  if (!view) {
    const std::string trouble = route_.trouble();
    return trouble.empty() ? "the route is being connected" : trouble;
  }
  std::lock_guard lock(mutex_);
  if (!trouble_.empty()) return trouble_;
  // A worker that was started anew may serve before the next look finds it.
  return IncarnationsOf(*view) == canary_workers_ ? canary_trouble_ : kBeingProven;
}

std::vector<WorkerView> RouteMonitor::AskWorkers(Duration limit) {
  auto round = std::make_shared<Round>();
  round->descriptions.resize(links_.size());
  round->stats.resize(links_.size());
  round->missing = 2 * links_.size();
  const Time deadline = clock_.Now() + limit;
  for (size_t i = 0; i < links_.size(); ++i) {
    links_[i]->Describe(deadline, [round, i](Reply<ShardDescription> reply) { Note(round, round->descriptions[i], reply); });
    links_[i]->Stats(deadline, [round, i](Reply<ShardStats> reply) { Note(round, round->stats[i], reply); });
  }
  std::vector<WorkerView> workers;
  {
    std::lock_guard lock(mutex_);
    workers = workers_;
  }
  {
    std::unique_lock lock(round->mutex);
    round->changed.wait_for(lock, limit + std::chrono::milliseconds(100), [&] { return round->missing == 0; });
    for (size_t i = 0; i < workers.size(); ++i) {
      if (round->descriptions[i]) workers[i].description = round->descriptions[i];
      if (round->stats[i]) workers[i].stats = round->stats[i];
      workers[i].answering = round->descriptions[i].has_value();
    }
  }
  std::lock_guard lock(mutex_);
  workers_ = workers;
  return workers;
}

void RouteMonitor::Loop() {
  for (;;) {
    const uint64_t generation = route_.generation();  // before the look: a repair in between is not waited for
    if (!route_.view()) {
      // Also what makes a route that was never connected connect itself. Returns as soon as it serves.
      (void)route_.WaitForRepair(generation, clock_.Now() + options_.interval, [this] {
        std::lock_guard lock(mutex_);
        return stopping_;
      });
    }
    // Workers of a broken route would only be waited for: the route says which one it is.
    const bool serving = route_.view() != nullptr;
    if (serving) {
      Judge(AskWorkers(options_.answer_limit));
    } else {
      Say(route_.trouble());
    }
    std::unique_lock lock(mutex_);
    const Duration pause = serving ? options_.interval : std::min(options_.interval, kNotReadyPause);
    if (wake_.wait_for(lock, pause, [&] { return stopping_; })) return;
  }
}

void RouteMonitor::Judge(const std::vector<WorkerView>& workers) {
  std::map<std::string, ShardStats> stats;
  for (const WorkerView& worker : workers) {
    if (worker.answering && worker.stats) stats[worker.address] = *worker.stats;
  }
  metrics_.UpdateWorkers(stats);

  const std::shared_ptr<const Route::View> view = route_.view();
  if (!view) return Say(route_.trouble());
  for (size_t stage = 0; stage < view->stages.size(); ++stage) {
    const ShardDescription& expected = view->stages[stage].description;
    const auto worker = std::find_if(workers.begin(), workers.end(), [&](const WorkerView& each) {
      return each.address == view->stages[stage].link->address();
    });
    if (worker == workers.end()) continue;  // not a link that was given to be watched
    const std::string name = "stage " + std::to_string(stage) + " " + expected.range.Text() + " at " + worker->address;
    if (!worker->answering) return Say(name + " does not answer");
    if (worker->description->incarnation != expected.incarnation) {
      route_.ReportLost(view->generation, name + " was restarted");
      return Say(name + " was restarted");
    }
    if (worker->description->state != ShardState::kServing) return Say(name + " is " + Name(worker->description->state));
  }
  const std::vector<Incarnation> incarnations = IncarnationsOf(*view);
  {
    std::lock_guard lock(mutex_);
    // The same processes were proven already: a network that was away for a moment changed nothing in them.
    const bool proven = incarnations == canary_workers_ && canary_trouble_.empty();
    if (!proven && !canary_runs_) {
      if (incarnations != canary_workers_) canary_trouble_ = kBeingProven;
      canary_workers_ = incarnations;
      canary_runs_ = true;
    }
  }
  wake_.notify_all();
  Say("");
}

void RouteMonitor::ProveLoop() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stopping_ || canary_runs_; });
      if (stopping_) return;
    }
    std::string trouble = Prove();
    {
      std::lock_guard lock(mutex_);
      canary_trouble_ = std::move(trouble);
      canary_runs_ = false;
    }
    TellLog();
  }
}

std::string RouteMonitor::Prove() {
  std::optional<Token> before;
  std::string trouble;
  for (int i = 0; i < kCanaryTries; ++i) {
    const std::optional<Token> token = RunCanary(&trouble);
    if (!token) return "the canary run failed: " + trouble;
    if (before == token) return "";
    before = token;
  }
  return "canary runs through the whole route gave different tokens";
}

std::optional<Token> RouteMonitor::RunCanary(std::string* trouble) {
  const std::function<bool()> cancelled = [this] {
    std::lock_guard lock(mutex_);
    return stopping_;
  };
  AnswerRequest request;
  request.prompt = options_.canary_prompt;
  if (const auto view = route_.view()) request.prompt.resize(std::min<size_t>(request.prompt.size(), view->limits.context_tokens));
  request.tokens_max = 1;
  request.sampling.temperature = 0;
  request.sampling.logprobs_wanted = true;
  // Only a worker that is new needs a canary, and with it every idle session's KV is worth nothing: none is lost when one makes room.
  // Under load the line may be long, and readiness would wait as long.
  auto turn = pool_.AcquireFirst(kCanaryOwner, request.prompt, clock_.Now() + options_.canary_limit, cancelled);
  if (const auto* refusal = std::get_if<TurnRefusal>(&turn)) {
    *trouble = std::string("no session for it, ") + Name(*refusal);
    return std::nullopt;
  }
  SessionPool::Lease lease = std::move(std::get<SessionPool::Lease>(turn));
  CanarySink sink(cancelled);
  const auto outcome = lease.session().Answer(request, sink);
  lease.Discard();
  if (const auto* failure = std::get_if<AnswerFailure>(&outcome)) {
    *trouble = failure->message;
    return std::nullopt;
  }
  if (!sink.sampled) {
    *trouble = "it ended without a token";
    return std::nullopt;
  }
  if (sink.sampled->logprob && !std::isfinite(*sink.sampled->logprob)) {
    *trouble = "its token has no finite probability";
    return std::nullopt;
  }
  return sink.sampled->token;
}

void RouteMonitor::Say(std::string trouble) {
  {
    std::lock_guard lock(mutex_);
    trouble_ = std::move(trouble);
  }
  TellLog();
}

void RouteMonitor::TellLog() {
  const std::string trouble = not_ready();
  const Time now = clock_.Now();
  {
    std::lock_guard lock(mutex_);
    if (told_ == trouble) return;
    // A dead worker is described in changing words; only being ready or not is news each time.
    const bool news = trouble.empty() || told_.empty() || now - said_ >= kSayInterval;
    told_ = trouble;
    if (!news) return;
    said_ = now;
  }
  LogNotice(trouble.empty() ? "ready: the route answered two canary runs alike" : "not ready: " + trouble);
}

}  // namespace meshnet::gateway
