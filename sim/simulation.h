// One run: a world drawn from a seed, trouble for so many steps, then a healed world in which everything has to finish and nothing may be left.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gateway.h"
#include "worker.h"
#include "world.h"

namespace meshnet::sim {

struct SimulationOptions {
  uint64_t seed = 1;
  uint64_t steps = 2500;     // events before the healing
  bool prints_trace = false;
  bool canary = false;       // an engine that now and then feeds a wrong token: the run must fail
};

class Simulation {
 public:
  explicit Simulation(const SimulationOptions& options);
  ~Simulation();

  // False when something was not as it has to be: then nothing can be told apart from the trace, and the object is not fit to be destroyed.
  bool Run();

  World& world() { return world_; }

 private:
  void Strike();
  void StrikeNetwork(uint32_t& draw);
  void StrikeProcess(uint32_t& draw);
  void AddGateway();
  void Heal();
  bool Finished() const;
  void RunUntilHealing();
  void RunUntilFinished();
  Gateway& AnyGateway();
  Worker& AnyWorker() { return *workers_[world_.random.Below(static_cast<uint32_t>(workers_.size()))]; }
  Link& AnyLink();

  const SimulationOptions options_;
  World world_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::unique_ptr<Gateway>> gateways_;  // the dead stay: late events still name them
};

}  // namespace meshnet::sim
