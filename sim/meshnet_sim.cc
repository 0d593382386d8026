// meshnet_sim --seed N --steps M: runs whole worlds of gateways, workers and a network between them in virtual time, and checks what clients are
// told. A failing seed prints how to repeat it.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <unistd.h>

#include <chrono>

#include "simulation.h"

namespace meshnet::sim {
namespace {

struct Arguments {
  SimulationOptions options;
  uint64_t seeds = 1;
  bool twice = true;
  bool marks = false;
  bool world = false;
};

constexpr char kUsage[] =
    "usage: meshnet_sim [--seed N] [--seeds COUNT] [--steps M] [--once] [--marks] [--world] [--trace] [--canary]\n"
    "  --seed N     the first seed (1)\n"
    "  --seeds C    how many, one after the other (1)\n"
    "  --steps M    events before the healing (2500)\n"
    "  --once       do not run each seed twice to compare the traces\n"
    "  --marks      count what was met\n"
    "  --world      print the parameters of each seed\n"
    "  --trace      print each event\n"
    "  --canary     with an engine that now and then feeds a wrong token: must fail\n";

// What runs now, for a broken invariant inside of it.
Simulation* running = nullptr;
const SimulationOptions* running_options = nullptr;

void Report(const char* what) {
  World& world = running->world();
  const std::string text = Text(world.swarm) + world.trace.Tail();
  std::fprintf(stderr, "%s\nmeshnet_sim: seed %llu: %s\nrepeat it: meshnet_sim --seed %llu --steps %llu%s --once --world --trace\n", text.c_str(),
               static_cast<unsigned long long>(running_options->seed), what, static_cast<unsigned long long>(running_options->seed),
               static_cast<unsigned long long>(running_options->steps), running_options->canary ? " --canary" : "");
}

// A check of the product does not hold: its sentence is on stderr already. Or something crashed.
void OnSignal(int signal) {
  std::signal(signal, SIG_DFL);
  Report(signal == SIGABRT ? "an invariant broke" : "it crashed");
  _exit(1);
}

std::optional<Arguments> Parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const auto number = [&](uint64_t& value) {
      if (i + 1 == argc) return false;
      char* end = nullptr;
      value = std::strtoull(argv[++i], &end, 10);
      return *argv[i] != '\0' && *end == '\0';
    };
    bool known = true;
    if (name == "--seed") known = number(arguments.options.seed);
    else if (name == "--seeds") known = number(arguments.seeds);
    else if (name == "--steps") known = number(arguments.options.steps);
    else if (name == "--once") arguments.twice = false;
    else if (name == "--marks") arguments.marks = true;
    else if (name == "--world") arguments.world = true;
    else if (name == "--trace") arguments.options.prints_trace = true;
    else if (name == "--canary") arguments.options.canary = true;
    else known = false;
    if (!known) return std::nullopt;
  }
  return arguments;
}

struct Sums {
  uint64_t events = 0;
  uint64_t tokens = 0;
  std::map<std::string, uint64_t> marks;
};

// The hash of its trace; ends the program when the run fails.
uint64_t RunOnce(const SimulationOptions& options, Sums& sums) {
  auto simulation = std::make_unique<Simulation>(options);
  running = simulation.get();
  running_options = &options;
  World& world = simulation->world();
  if (!simulation->Run()) {
    Report(world.checker.failure().c_str());
    _exit(1);
  }
  sums.events += world.loop.steps();
  sums.tokens += world.tokens_told;
  for (const auto& [name, count] : world.checker.marks()) sums.marks[name] += count;
  return world.trace.hash();
}

int Main(int argc, char** argv) {
  std::optional<Arguments> arguments = Parse(argc, argv);
  if (!arguments) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  std::signal(SIGABRT, OnSignal);
  std::signal(SIGSEGV, OnSignal);
  const auto begun = std::chrono::steady_clock::now();
  Sums sums;
  uint64_t hash = 0;
  for (uint64_t i = 0; i < arguments->seeds; ++i, ++arguments->options.seed) {
    if (arguments->world) {
      Random random(arguments->options.seed);
      std::printf("seed %llu\n%s", static_cast<unsigned long long>(arguments->options.seed), Text(DrawSwarm(random)).c_str());
    }
    hash = RunOnce(arguments->options, sums);
    if (arguments->twice && RunOnce(arguments->options, sums) != hash) {
      std::fprintf(stderr, "meshnet_sim: seed %llu: two runs of it differ\n", static_cast<unsigned long long>(arguments->options.seed));
      return 1;
    }
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  std::printf("%llu seeds%s, %llu events, %llu tokens told, %.0f events a second\n", static_cast<unsigned long long>(arguments->seeds),
              arguments->twice ? ", each twice with equal traces" : "", static_cast<unsigned long long>(sums.events),
              static_cast<unsigned long long>(sums.tokens), static_cast<double>(sums.events) / seconds);
  if (arguments->seeds == 1) std::printf("trace %016llx\n", static_cast<unsigned long long>(hash));
  if (arguments->marks) {
    for (const auto& [name, count] : sums.marks) std::printf("%10llu %s\n", static_cast<unsigned long long>(count), name.c_str());
  }
  return 0;
}

}  // namespace
}  // namespace meshnet::sim

int main(int argc, char** argv) { return meshnet::sim::Main(argc, argv); }
