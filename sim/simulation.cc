#include "simulation.h"

#include <algorithm>

namespace meshnet::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

// After the healing. Virtual time for everybody to get an answer, and events for all that is left to happen.
constexpr Duration kFinishLimit = minutes(20);
constexpr uint64_t kFinishSteps = 5'000'000;
constexpr size_t kGatewaysMax = 8;

// True for one of `weight` in what is left of a draw.
bool Falls(uint32_t& draw, uint32_t weight) {
  if (draw < weight) return true;
  draw -= weight;
  return false;
}

}  // namespace

Simulation::Simulation(const SimulationOptions& options) : options_(options), world_(options.seed) {
  world_.canary = options.canary;
  if (options.prints_trace) world_.trace.PrintAll();
  uint32_t context_tokens = 0;
  for (const WorkerShape& shape : world_.swarm.workers) context_tokens = std::max(context_tokens, shape.context_tokens);
  for (size_t i = 0; i < world_.swarm.workers.size(); ++i) {
    workers_.push_back(std::make_unique<Worker>(world_, static_cast<uint8_t>(i), context_tokens));
    workers_.back()->Start();
  }
  for (uint32_t i = 0; i < world_.swarm.gateways; ++i) AddGateway();
}

Simulation::~Simulation() = default;

void Simulation::AddGateway() {
  gateways_.push_back(std::make_unique<Gateway>(world_, static_cast<uint8_t>(gateways_.size()), workers_));
  gateways_.back()->Start();
}

Gateway& Simulation::AnyGateway() {
  std::vector<Gateway*> alive;
  for (const auto& gateway : gateways_) {
    if (!gateway->dead()) alive.push_back(gateway.get());
  }
  return *alive[world_.random.Below(static_cast<uint32_t>(alive.size()))];
}

Link& Simulation::AnyLink() { return AnyGateway().link(world_.random.Below(static_cast<uint32_t>(workers_.size()))); }

void Simulation::Strike() {
  const uint32_t sum = world_.swarm.chaos.sum();
  if (sum == 0) return;
  uint32_t draw = world_.random.Below(sum);
  StrikeNetwork(draw);
}

void Simulation::StrikeNetwork(uint32_t& draw) {
  const ChaosWeights& chaos = world_.swarm.chaos;
  Random& random = world_.random;
  if (Falls(draw, chaos.cut)) {
    const uint32_t direction = random.Between(1, 3);
    const Duration most = random.Pick<Duration>({milliseconds(20), seconds(1), seconds(10)});
    Link& link = AnyLink();
    link.Cut((direction & 2) != 0, (direction & 1) != 0, random.Between(microseconds(1), most));
    if (random.Coin()) link.BreakStream();
  } else if (Falls(draw, chaos.break_stream)) {
    AnyLink().BreakStream();
  } else if (Falls(draw, chaos.zombie)) {
    // Also from gateways that are dead by now.
    Gateway& gateway = *gateways_[random.Below(static_cast<uint32_t>(gateways_.size()))];
    gateway.link(random.Below(static_cast<uint32_t>(workers_.size()))).ReplayOld();
  } else if (Falls(draw, chaos.forge)) {
    AnyLink().Forge();
  } else if (Falls(draw, chaos.engine_fault)) {
    Worker& worker = AnyWorker();
    worker.Inject(random.Below(Worker::kEngineFaults));
  } else {
    StrikeProcess(draw);
  }
}

void Simulation::StrikeProcess(uint32_t& draw) {
  const ChaosWeights& chaos = world_.swarm.chaos;
  Random& random = world_.random;
  if (Falls(draw, chaos.crash)) {
    Worker& worker = AnyWorker();
    worker.Crash(random.Coin());
  } else if (Falls(draw, chaos.pause_worker)) {
    Worker& worker = AnyWorker();
    worker.Pause(random.Between(milliseconds(1), random.Coin() ? milliseconds(200) : seconds(20)));
  } else if (Falls(draw, chaos.pause_gateway)) {
    Gateway& gateway = AnyGateway();
    gateway.Pause(random.Between(milliseconds(1), random.Coin() ? milliseconds(200) : seconds(20)));
  } else if (Falls(draw, chaos.jump_clock)) {
    const Duration by = random.Between(milliseconds(1), random.Coin() ? seconds(2) : seconds(700));
    if (random.Coin()) {
      AnyWorker().JumpClock(by);
    } else {
      AnyGateway().time().Jump(by);
    }
  } else if (Falls(draw, chaos.drain)) {
    AnyWorker().BeginDrain();
  } else if (Falls(draw, chaos.take_over)) {
    if (world_.sessions.empty()) return;
    const SessionId session = world_.sessions[random.Below(static_cast<uint32_t>(world_.sessions.size()))];
    AnyGateway().TakeOver(session);
  } else if (Falls(draw, chaos.collide)) {
    if (world_.sessions.empty()) return;
    const SessionId session = world_.sessions[random.Below(static_cast<uint32_t>(world_.sessions.size()))];
    AnyGateway().Collide(session);
  } else if (Falls(draw, chaos.gateway_death) && gateways_.size() < kGatewaysMax) {
    AnyGateway().Die();
    AddGateway();
  }
}

void Simulation::Heal() {
  world_.healed = true;
  world_.healed_at = world_.loop.now();
  world_.Note({What::kHealed});
  for (const auto& gateway : gateways_) {
    for (size_t stage = 0; stage < workers_.size(); ++stage) gateway->link(stage).Heal();
  }
  for (const auto& worker : workers_) worker->Heal();
}

bool Simulation::Finished() const {
  return std::ranges::all_of(gateways_, [](const auto& gateway) { return gateway->done(); });
}

void Simulation::RunUntilHealing() {
  uint32_t until_strike = world_.random.Between(1, 2 * world_.swarm.events_between_chaos);
  while (world_.loop.steps() < options_.steps && !world_.checker.failed()) {
    world_.loop.Step();
    if (--until_strike > 0) continue;
    until_strike = world_.random.Between(1, 2 * world_.swarm.events_between_chaos);
    Strike();
  }
}

void Simulation::RunUntilFinished() {
  const uint64_t steps_max = world_.loop.steps() + kFinishSteps;
  const Time limit = world_.healed_at + kFinishLimit;
  while (!world_.checker.failed() && !Finished()) {
    if (world_.loop.empty()) return world_.checker.Fail("nothing happens any more, and clients wait");
    if (world_.loop.now() > limit) return world_.checker.Fail("the world is healed, and clients still wait after 20 minutes");
    if (world_.loop.steps() > steps_max) return world_.checker.Fail("the world is healed, and it is busy for ever");
    world_.loop.Step();
  }
  // What was stuck arrives, sessions that nobody released expire, and then there is silence.
  while (!world_.checker.failed() && !world_.loop.empty()) {
    if (world_.loop.steps() > steps_max) return world_.checker.Fail("all clients have gone, and it is busy for ever");
    world_.loop.Step();
  }
}

bool Simulation::Run() {
  RunUntilHealing();
  Heal();
  RunUntilFinished();
  for (const auto& worker : workers_) {
    if (!world_.checker.failed()) worker->CheckEmpty();
  }
  for (const auto& gateway : gateways_) {
    for (size_t stage = 0; stage < workers_.size(); ++stage) gateway->link(stage).CheckAnswered();
  }
  return !world_.checker.failed();
}

}  // namespace meshnet::sim
