#include "worker.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"

namespace meshnet::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kDrainQuiet = milliseconds(500);
constexpr Duration kDrainLimit = seconds(20);
constexpr Duration kDrainLook = milliseconds(20);
constexpr uint32_t kStallChance = 3;        // thousandths of engine calls that take kStall times as long
constexpr int64_t kStall = 100;
constexpr uint64_t kTurnsBetweenLooks = 8;  // at all invariants

}  // namespace

// A fake engine that fails when it is told to, and whose next output may hold a value that is not finite.
class Worker::FaultyEngine : public FakeEngine {
 public:
  using FakeEngine::FakeEngine;

  std::vector<EngineOutcome> Run(std::span<const EngineStep> steps) override {
    if (fails_next) Inject({*std::exchange(fails_next, std::nullopt), std::nullopt});
    std::vector<EngineOutcome> outcomes = wrong_token_next ? RunWrongly(steps) : FakeEngine::Run(steps);
    for (EngineOutcome& outcome : outcomes) {
      if (!spoils_next || outcome.output.empty()) continue;
      spoils_next = false;
      std::vector<float> values(outcome.output.values().begin(), outcome.output.values().end());
      values.back() = std::numeric_limits<float>::quiet_NaN();
      outcome.output = HiddenState(outcome.output.rows(), outcome.output.width(), std::move(values));
    }
    return outcomes;
  }

  bool Truncate(SequenceId sequence, PastLen keep) override {
    if (std::exchange(cuts_badly_next, false)) Inject({FakeFault::Kind::kTruncateFails, std::nullopt});
    // A step that has cut its session before it fails is rolled back to another length than it found.
    if (std::exchange(fails_after_cut, false)) fails_next = FakeFault::Kind::kRolledBack;
    return FakeEngine::Truncate(sequence, keep);
  }
  void Heal() {
    fails_next.reset();
    cuts_badly_next = spoils_next = fails_after_cut = false;
  }

  // The canary: lengths and codes are all right, only one token of the KV is not.
  std::vector<EngineOutcome> RunWrongly(std::span<const EngineStep> steps) {
    wrong_token_next = false;
    std::vector<EngineStep> altered(steps.begin(), steps.end());
    std::vector<Token> tokens(altered.front().tokens.begin(), altered.front().tokens.end());
    tokens.front() = tokens.front() == 0 ? 1 : 0;
    altered.front().tokens = tokens;
    return FakeEngine::Run(altered);
  }

  std::optional<FakeFault::Kind> fails_next;
  bool wrong_token_next = false;
  bool cuts_badly_next = false;
  bool fails_after_cut = false;
  bool spoils_next = false;
};

Worker::Worker(World& world, uint8_t number, uint32_t context_tokens)
    : world_(world), number_(number), shape_(world.swarm.workers.at(number)), context_tokens_(context_tokens), time_(world.loop), clock_(time_) {}

Worker::~Worker() = default;

void Worker::InProcess(Time when, std::function<void()> act) {
  time_.At(when, [this, number = process_->number, act = std::move(act)] {
    if (process_ && process_->number == number) act();
  });
}

void Worker::Start() {
  if (process_) return;
  const Incarnation incarnation = world_.random.Name<Incarnation>();
  process_ = std::make_unique<Process>(Audit(world_.checker, "worker " + std::to_string(number_), incarnation));
  process_->number = ++processes_;
  ShardDescription& description = process_->description;
  description.state = ShardState::kStarting;
  description.incarnation = incarnation;
  description.model_root.bytes.fill(0x5a);
  description.range = shape_.range;
  description.layer_count = world_.swarm.model.layer_count;
  world_.Note({What::kStarts, place(), {}, {}, processes_});
  InProcess(world_.loop.now() + shape_.load_time, [this] { Serve(); });
}

void Worker::Serve() {
  FakeEngineOptions options;
  options.model = world_.swarm.model;
  options.range = shape_.range;
  options.sessions_max = shape_.sessions_max;
  options.context_tokens = context_tokens_;
  options.budget_tokens = shape_.budget_tokens;
  options.chunk_rows_max = shape_.chunk_rows_max;
  options.truncation_class = shape_.truncation_class;
  options.window_tokens = shape_.window_tokens;
  options.window_slack_tokens = shape_.window_slack_tokens;
  options.on_run = [this](std::span<const EngineStep> steps) {
    size_t rows = 0;
    for (const EngineStep& step : steps) rows += step.tokens.size();
    clock_.in_call = shape_.row_time * static_cast<int64_t>(rows) * (world_.healed || !world_.random.Chance(kStallChance) ? 1 : kStall);
    world_.Note({What::kRun, place(), {}, {}, steps.size(), Micros(clock_.in_call)});
    if (world_.canary && world_.random.Chance(10)) process_->engine->wrong_token_next = true;
  };
  auto engine = std::make_unique<FaultyEngine>(options);
  process_->engine = engine.get();
  const HotKvSettings settings{shape_.sessions_max, shape_.context_tokens, shape_.budget_tokens, shape_.ttl_seconds};
  DescribeEngine(*engine, settings, 64u << 20, process_->description);
  process_->core = std::make_unique<ShardCore>(std::move(engine), process_->description, clock_);
  const bool drains = process_->state == ShardState::kDraining;
  if (!drains) process_->state = process_->description.state = ShardState::kServing;
  if (drains) process_->core->BeginDrain();
  world_.Note({What::kServes, place()});
  Wake(world_.loop.now());
}

std::optional<Refusal> Worker::not_serving() const {
  if (process_->core) return std::nullopt;
  Refusal refusal;
  refusal.reason = Reason::kDraining;
  refusal.incarnation = process_->description.incarnation;
  refusal.message = "layers " + shape_.range.Text() + ": the worker is starting, it still loads the model";
  refusal.retry_after = milliseconds(500);
  return refusal;
}

void Worker::Post(Command command) {
  process_->mailbox.push_back(std::move(command));
  if (!process_->busy) Wake(world_.loop.now());
}

// The earliest wish counts.
void Worker::Wake(Time when) {
  std::optional<EventLoop::Id>& wake = process_->wake;
  if (wake && wake->first <= when) return;
  if (wake) world_.loop.Cancel(*wake);
  wake = time_.At(when, [this, number = process_->number] {
    if (!process_ || process_->number != number) return;
    process_->wake.reset();
    if (!process_->busy) Turn();
  });
}

// One round of ShardHost's loop: commands, drain, the next engine call.
void Worker::Turn() {
  Process& process = *process_;
  if (!process.core) return;
  ShardCore& core = *process.core;
  std::vector<Command> commands;
  commands.swap(process.mailbox);
  core.Expire();
  for (Command& command : commands) command(core);
  core.FlushAnswers();
  Look();
  if (DrainIsOver()) return End(true);
  const Scheduler::Plan plan = core.Next();
  if (plan.verdict == Scheduler::Plan::Verdict::kRun) return RunEngine(plan);
  const auto local = [this](Time when) { return world_.loop.now() + std::max(when - time_.Now(), Duration(0)); };
  if (plan.verdict == Scheduler::Plan::Verdict::kWait) Wake(local(plan.until));
  if (std::optional<Time> expiry = core.next_expiry()) Wake(local(*expiry));
  if (process.ending) Wake(world_.loop.now() + kDrainLook);
}

void Worker::RunEngine(const Scheduler::Plan& plan) {
  process_->busy = true;
  process_->core->Run(plan);
  InProcess(world_.loop.now() + clock_.in_call, [this] { EngineDone(); });
}

void Worker::EngineDone() {
  clock_.in_call = Duration(0);
  process_->busy = false;
  process_->core->FlushAnswers();
  Turn();
}

void Worker::Look() {
  ShardCore& core = *process_->core;
  if (!core.poison().empty()) world_.checker.Fail("worker " + std::to_string(number_) + " is poisoned: " + core.poison() + "\n" + core.History());
  if (++turns_ % kTurnsBetweenLooks != 0) return;
  core.CheckInvariants();
  uint64_t held = 0;
  for (uint32_t i = 0; i < shape_.sessions_max; ++i) held += process_->engine->past_len(SequenceId(static_cast<int32_t>(i))).value;
  const uint64_t used = core.Stats().kv_tokens_used;
  if (held != used) world_.checker.Fail("worker " + std::to_string(number_) + ": the engine holds " + std::to_string(held) + " tokens, the sessions " + std::to_string(used));
}

bool Worker::DrainIsOver() {
  if (!process_->ending || !process_->core->quiet_for(kDrainQuiet)) return false;
  process_->core->FinishDrain();
  process_->core->FlushAnswers();
  world_.checker.Mark("worker drained");
  return true;
}

void Worker::BeginDrain() {
  if (!process_ || process_->ending) return;
  process_->state = process_->description.state = ShardState::kDraining;
  process_->ending = true;
  world_.Note({What::kDrain, place()});
  InProcess(world_.loop.now() + kDrainLimit, [this] { End(true); });
  if (process_->core) Post([](ShardCore& core) { core.BeginDrain(); });
}

// In order: what is unanswered is refused first.
void Worker::End(bool heard) {
  if (process_->core) {
    Refusal stopped;
    stopped.reason = Reason::kDraining;
    stopped.message = "the worker is stopping";
    stopped.incarnation = process_->description.incarnation;
    process_->core->RefuseAll(stopped);
    process_->core->FlushAnswers();
  }
  world_.Note({What::kDrainEnds, place()});
  process_.reset();
  clock_.in_call = Duration(0);
  for (const auto& hook : on_death_) hook(heard);
  world_.loop.After(world_.random.Between(milliseconds(1), seconds(3)), [this] { Start(); });
}

void Worker::Crash(bool heard) {
  if (!process_) return;
  world_.Note({What::kCrashes, place(), {}, {}, heard});
  process_.reset();
  clock_.in_call = Duration(0);
  for (const auto& hook : on_death_) hook(heard);
  world_.loop.After(world_.random.Between(milliseconds(1), seconds(5)), [this] { Start(); });
}

void Worker::Pause(Duration duration) {
  world_.Note({What::kPauses, place(), {}, {}, Micros(duration)});
  time_.PauseUntil(world_.loop.now() + duration);
}

void Worker::JumpClock(Duration duration) {
  world_.Note({What::kClockJumps, place(), {}, {}, Micros(duration)});
  time_.Jump(duration);
  // What the clock now shows may be past what was waited for.
  if (process_ && process_->core) Wake(world_.loop.now());
}

void Worker::Inject(uint32_t kind) {
  if (!process_ || !process_->engine) return;
  world_.Note({What::kEngineFault, place(), {}, {}, kind});
  FaultyEngine& engine = *process_->engine;
  switch (kind) {
    case 0: engine.fails_next = FakeFault::Kind::kRolledBack; break;
    case 1: engine.fails_next = FakeFault::Kind::kLost; break;
    case 2: engine.fails_next = FakeFault::Kind::kNonFinite; break;
    case 3: engine.cuts_badly_next = true; break;
    case 4: engine.fails_after_cut = true; break;
    default: engine.spoils_next = true; break;
  }
}

void Worker::Heal() {
  if (process_ && process_->engine) process_->engine->Heal();
  Start();
}

void Worker::CheckEmpty() {
  const auto fail = [this](const std::string& what) { world_.checker.Fail("worker " + std::to_string(number_) + " in the end: " + what); };
  if (!serving()) return fail("it does not serve");
  const ShardStats stats = process_->core->Stats();
  process_->core->CheckInvariants();
  if (stats.sessions_live != 0 || stats.sessions_busy != 0) fail(std::to_string(stats.sessions_live) + " sessions live");
  if (stats.kv_tokens_reserved != 0 || stats.kv_tokens_used != 0) fail(std::to_string(stats.kv_tokens_reserved) + " tokens reserved");
  if (stats.sequences_free != shape_.sessions_max) fail(std::to_string(stats.sequences_free) + " sequences free");
  if (stats.steps_queued != 0 || !process_->mailbox.empty() || process_->busy) fail("work is left");
  for (uint32_t sequence = 0; sequence < shape_.sessions_max; ++sequence) {
    const PastLen held = process_->engine->past_len(SequenceId(static_cast<int32_t>(sequence)));
    if (held.value != 0) fail("the engine holds " + std::to_string(held.value) + " tokens of sequence " + std::to_string(sequence));
  }
}

}  // namespace meshnet::sim
