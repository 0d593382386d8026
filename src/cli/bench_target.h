// What `meshnet bench` measures: something that answers bursts of prompts.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cli/bench_figures.h"
#include "engine/engine_options.h"
#include "session/route.h"

namespace meshnet::cli {

class BenchTarget {
 public:
  virtual ~BenchTarget() = default;
  virtual const std::string& name() const = 0;
  // Runs one burst, greedy, ignoring the end of generation.
  virtual Result<BurstTimes> Burst(const BurstShape& shape) = 0;
};

// One thread a session, all at once. `session`: its number, the start of the burst, where the seconds from it to each token go; returns what
// went wrong, empty when nothing did.
using SessionOfBurst = std::function<std::string(uint32_t session, Time start, std::vector<double>* token_times)>;
Result<BurstTimes> BurstOfThreads(const std::string& name, const BurstShape& shape, const Clock& clock, const SessionOfBurst& session);

// Sessions of the driver over a route, one thread each. `route` and `clock` outlive it.
std::unique_ptr<BenchTarget> CreateRouteTarget(const std::string& name, Route& route, const Clock& clock, uint32_t vocabulary_size);

// The same through a gateway: streams of /v1/completions at `address` ("127.0.0.1:8080").
std::unique_ptr<BenchTarget> CreateHttpTarget(const std::string& name, const std::string& address, const Clock& clock, uint32_t vocabulary_size);

// One plain llama.cpp context in this process: prompts one after the other, then all sessions in one batch a step.
Result<std::unique_ptr<BenchTarget>> CreatePlainTarget(const std::string& name, const std::string& model_path, const EngineOptions& options,
                                                       const Clock& clock);

}  // namespace meshnet::cli
