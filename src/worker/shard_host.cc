#include "worker/shard_host.h"

#include <cstdio>
#include <future>
#include <utility>

#include "base/check.h"

namespace meshnet {
namespace {

template <typename... Fs>
struct Overloaded : Fs... {
  using Fs::operator()...;
};
template <typename... Fs>
Overloaded(Fs...) -> Overloaded<Fs...>;

// How often a drain looks whether it is over.
constexpr Duration kDrainLook = std::chrono::milliseconds(20);

}  // namespace

ShardHost::ShardHost(ShardHostOptions options, ShardDescription description, MakeEngine make_engine, const Clock& clock)
    : options_(std::move(options)), make_engine_(std::move(make_engine)), clock_(clock), mailbox_(options_.mailbox), description_(std::move(description)) {
  description_.state = ShardState::kStarting;
  description_.protocol_major = kProtocolMajor;
  description_.protocol_minor = kProtocolMinor;
  thread_ = std::thread([this] { Loop(); });
}

ShardHost::~ShardHost() { Stop(); }

void ShardHost::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  mailbox_.Wake();
  if (thread_.joinable()) thread_.join();
}

Status ShardHost::WaitLoaded() {
  std::unique_lock lock(mutex_);
  loaded_changed_.wait(lock, [this] { return loaded_ || !trouble_.ok(); });
  return trouble_;
}

ShardDescription ShardHost::description() const {
  std::lock_guard lock(mutex_);
  return description_;
}

ShardShape ShardHost::shape() const {
  std::lock_guard lock(mutex_);
  return ShapeOf(description_);
}

bool ShardHost::drained() const {
  std::lock_guard lock(mutex_);
  return drained_;
}

Status ShardHost::trouble() const {
  std::lock_guard lock(mutex_);
  return trouble_;
}

void ShardHost::SetState(ShardState state) {
  {
    std::lock_guard lock(mutex_);
    if (description_.state == ShardState::kPoisoned || (description_.state == ShardState::kDraining && state == ShardState::kServing)) return;
    description_.state = state;
  }
  if (options_.on_state) options_.on_state(state);
}

std::optional<Refusal> ShardHost::not_serving() const {
  std::lock_guard lock(mutex_);
  Refusal refusal;
  refusal.reason = Reason::kDraining;
  refusal.incarnation = description_.incarnation;
  if (description_.state == ShardState::kPoisoned) {
    refusal.reason = Reason::kPoisoned;
    refusal.message = "layers " + description_.range.Text() + ": an invariant broke, this worker serves no more";
  } else if (stopping_ || !trouble_.ok()) {
    refusal.message = "layers " + description_.range.Text() + ": the worker is stopping";
  } else if (description_.state == ShardState::kStarting) {
    refusal.message = "layers " + description_.range.Text() + ": the worker is starting, it still loads the model";
    refusal.retry_after = std::chrono::milliseconds(500);
  } else {
    return std::nullopt;
  }
  return refusal;
}

Refusal ShardHost::Named(Refusal refusal) const {
  std::lock_guard lock(mutex_);
  refusal.message = "layers " + description_.range.Text() + ": " + refusal.message;
  refusal.incarnation = description_.incarnation;
  return refusal;
}

void ShardHost::Post(Command command, uint64_t bytes) {
  std::optional<Refusal> refusal = not_serving();
  if (!refusal && mailbox_.Put(command, bytes)) return;
  if (!refusal) refusal = not_serving();  // it stopped in between
  RefuseCommand(command, *refusal);
}

void ShardHost::Open(OpenRequest request, ShardLink::Done<OpenReply> done) {
  Post(OpenCommand{std::move(request), std::move(done)}, sizeof(OpenCommand));
}

void ShardHost::Submit(std::vector<SubmittedStep> steps, std::vector<SessionKey> cancels, std::shared_ptr<StepAnswerSink> sink, uint64_t bytes) {
  Post(StepsCommand{std::move(steps), std::move(cancels), std::move(sink)}, bytes);
}

void ShardHost::EndStream(std::shared_ptr<StepAnswerSink> sink) { Post(EndStreamCommand{std::move(sink)}, 0); }

void ShardHost::Release(SessionKey key, ShardLink::Done<ReleaseOutcome> done) { Post(ReleaseCommand{key, std::move(done)}, sizeof(ReleaseCommand)); }

void ShardHost::Stats(ShardLink::Done<ShardStats> done) { Post(StatsCommand{std::move(done)}, sizeof(StatsCommand)); }

void ShardHost::BeginDrain(bool then_end) {
  SetState(ShardState::kDraining);
  Command command = DrainCommand{then_end};
  (void)mailbox_.Put(command, 0);  // also before the engine is there
}

void ShardHost::Inspect(std::function<void(ShardCore&)> look) {
  std::promise<void> done;
  Command command = InspectCommand{[&](ShardCore& core) {
    look(core);
    done.set_value();
  }};
  if (mailbox_.Put(command, 0)) done.get_future().wait();
}

std::unique_ptr<ShardCore> ShardHost::Load() {
  auto fail = [this](Status status) {
    std::lock_guard lock(mutex_);
    trouble_ = std::move(status);
    loaded_changed_.notify_all();
    return nullptr;
  };
  if (!options_.turn_path.empty()) {
    Result<std::unique_ptr<HostTurn>> turn = HostTurn::Open(options_.turn_path);
    if (!turn.ok()) return fail(turn.status());
    turn_ = std::move(turn).value();
  }
  Result<std::unique_ptr<Engine>> engine = make_engine_();
  if (!engine.ok()) return fail(engine.status());
  ShardDescription description = this->description();
  DescribeEngine(**engine, options_.hot_kv, options_.frame_bytes_cap, description);
  auto core = std::make_unique<ShardCore>(std::move(engine).value(), description, clock_);
  {
    std::lock_guard lock(mutex_);
    description.state = description_.state;
    description_ = std::move(description);
  }
  SetState(ShardState::kServing);
  // Last: whoever waited for it finds a shard that serves.
  std::lock_guard lock(mutex_);
  loaded_ = true;
  loaded_changed_.notify_all();
  return core;
}

void ShardHost::Loop() {
  std::unique_ptr<ShardCore> core = Load();
  if (!core) {
    if (options_.on_state) options_.on_state(ShardState::kPoisoned);
    return;
  }
  Scheduler::Plan plan;
  while (true) {
    Receive(*core, SleepFor(*core, plan));
    {
      std::lock_guard lock(mutex_);
      if (stopping_) break;
    }
    AdvanceDrain(*core);
    plan = core->Next();
    if (plan.verdict == Scheduler::Plan::Verdict::kRun) RunWithTurn(*core, plan);
    TellPoison(*core);
    core->FlushAnswers();
  }
  Refusal stopped;
  stopped.reason = Reason::kDraining;
  stopped.message = "layers " + core->engine().info().range.Text() + ": the worker is stopping";
  core->RefuseAll(stopped);
  core->FlushAnswers();
  mailbox_.Close();
  for (Command& command : mailbox_.TakeAll(Duration::zero())) RefuseCommand(command, stopped);
}

std::optional<Duration> ShardHost::SleepFor(const ShardCore& core, const Scheduler::Plan& plan) const {
  if (plan.verdict == Scheduler::Plan::Verdict::kRun) return Duration::zero();
  std::optional<Duration> sleep;
  auto at_most = [&](Duration duration) { sleep = std::min(sleep.value_or(duration), duration); };
  if (plan.verdict == Scheduler::Plan::Verdict::kWait) at_most(plan.until - clock_.Now());
  if (std::optional<Time> expiry = core.next_expiry()) at_most(*expiry - clock_.Now());
  if (ending_) at_most(kDrainLook);
  return sleep;
}

void ShardHost::Receive(ShardCore& core, std::optional<Duration> timeout) {
  std::vector<Command> commands = mailbox_.TakeAll(timeout);
  core.Expire();
  TellPoison(core);
  for (Command& command : commands) {
    Apply(core, command);
    TellPoison(core);
  }
  core.FlushAnswers();
}

// Before any answer says that the shard is poisoned: whoever hears it finds it out of service.
void ShardHost::TellPoison(ShardCore& core) {
  if (core.poison().empty() || !trouble().ok()) return;
  std::fprintf(stderr, "meshnet: this worker is poisoned: %s. Its last commands:\n%s", core.poison().c_str(), core.History().c_str());
  if (options_.on_state) options_.on_state(ShardState::kPoisoned);
  {
    std::lock_guard lock(mutex_);
    description_.state = ShardState::kPoisoned;
    trouble_ = Failure("an invariant broke: " + core.poison());
  }
  if (options_.on_state) options_.on_state(ShardState::kPoisoned);  // now trouble() says why, to who waits for that
}

void ShardHost::Apply(ShardCore& core, Command& command) {
  std::visit(Overloaded{
                 [&](OpenCommand& open) {
                   std::variant<OpenReply, Refusal> reply = core.Open(open.request);
                   if (Refusal* refusal = std::get_if<Refusal>(&reply)) return open.done(std::move(*refusal));
                   open.done(std::move(std::get<OpenReply>(reply)));
                 },
                 [&](StepsCommand& steps) {
                   for (SubmittedStep& step : steps.steps) core.Submit(std::move(step), steps.sink);
                   for (const SessionKey& key : steps.cancels) core.Cancel(key);
                 },
                 [&](EndStreamCommand& end) { core.EndStream(end.sink); },
                 [&](ReleaseCommand& release) { release.done(core.Release(release.key)); },
                 [&](StatsCommand& stats) { stats.done(core.Stats()); },
                 [&](DrainCommand& drain) {
                   core.BeginDrain();
                   ending_ = ending_ || drain.then_end;
                 },
                 [&](InspectCommand& inspect) { inspect.look(core); },
             },
             command);
}

void ShardHost::RunWithTurn(ShardCore& core, const Scheduler::Plan& plan) {
  if (!turn_) return core.Run(plan);
  if (turn_->Acquire() == HostTurn::Got::kAtOnce) {
    core.Run(plan);
  } else {
    // Much may have come while another worker computed; and what that worker has just answered is on its way to us.
    Receive(core, Duration::zero());
    Scheduler::Plan now = core.RegatherAfterTurn() ? Scheduler::Plan() : core.Next();
    if (now.verdict == Scheduler::Plan::Verdict::kRun) core.Run(now);
  }
  turn_->Release();
}

void ShardHost::AdvanceDrain(ShardCore& core) {
  if (!ending_ || drained() || !core.quiet_for(options_.drain_quiet)) return;
  core.FinishDrain();
  TellPoison(core);
  core.FlushAnswers();
  {
    std::lock_guard lock(mutex_);
    drained_ = true;
  }
  if (options_.on_state) options_.on_state(ShardState::kDraining);
}

void ShardHost::RefuseCommand(Command& command, const Refusal& refusal) {
  std::visit(Overloaded{
                 [&](OpenCommand& open) { open.done(refusal); },
                 [&](StepsCommand& steps) {
                   std::vector<StepAnswer> answers;
                   for (const SubmittedStep& step : steps.steps) answers.push_back({step.request_id, refusal});
                   if (!answers.empty()) steps.sink->OnAnswers(std::move(answers));
                 },
                 [&](ReleaseCommand& release) { release.done(refusal); },
                 [&](StatsCommand& stats) {
                   // How the shard is can be told even while it does not serve.
                   ShardDescription description = this->description();
                   ShardStats bare;
                   bare.state = description.state;
                   bare.incarnation = description.incarnation;
                   stats.done(std::move(bare));
                 },
                 [](InspectCommand&) {},
                 [](EndStreamCommand&) {},
                 [](DrainCommand&) {},
             },
             command);
}

}  // namespace meshnet
