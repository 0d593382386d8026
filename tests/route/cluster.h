// For tests: a whole route in this process, real shard hosts over fake engines behind faulty links, and what a client of it should see.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/system_clock.h"
#include "engine/fake_engine.h"
#include "faulty_link.h"
#include "session/route.h"
#include "session/session_driver.h"
#include "worker/shard_host.h"

namespace meshnet {

struct ClusterOptions {
  FakeModel model;
  std::vector<uint32_t> cuts = {2, 4};   // of 6 layers: three stages
  TruncationClass truncation_class = TruncationClass::kFull;
  uint32_t window_tokens = 0;
  uint32_t sessions_max = 4;
  uint32_t context_tokens = 256;
  uint32_t budget_tokens = 1024;
  uint32_t chunk_rows_max = 16;
  FaultRates rates;
  uint64_t seed = 1;
  // Called on the engine thread of a stage at the start of each engine call.
  std::function<void(size_t stage)> on_run;
};

class Cluster {
 public:
  explicit Cluster(ClusterOptions options);
  ~Cluster();

  size_t stage_count() const { return stages_.size(); }
  FaultyLink& link(size_t stage);
  // The engine of the process that runs now. Do not keep it over a restart.
  FakeEngine& engine(size_t stage);
  ShardHost& host(size_t stage);

  // The process dies: everything outstanding and to come is a fault.
  void Kill(size_t stage) { link(stage).Kill(); }
  // A new process at the same address.
  void Start(size_t stage);
  void Restart(size_t stage) { Kill(stage), Start(stage); }
  // It comes back by itself when `describes` of the route's repairs have found it dead.
  void KillFor(size_t stage, int describes);

  // Empty when no stage holds anything any more; else what is left.
  std::string Leftovers();

  SystemClock clock;
  std::unique_ptr<Route> route;

 private:
  struct StageSlot;

  const ClusterOptions options_;
  std::vector<std::unique_ptr<StageSlot>> stages_;
};

// A client: collects what it is given and says stop or cancel when told to.
class Client : public AnswerSink {
 public:
  SinkVerdict OnToken(const SampledToken& token) override;
  void OnPrefill(uint32_t done_tokens, uint32_t total_tokens) override;
  bool Cancelled() override;

  std::vector<Token> tokens;
  std::function<void(size_t)> on_token;      // with how many there are now
  std::function<void(uint32_t)> on_prefill;
  std::function<bool()> cancelled;
};

struct Told {
  std::vector<Token> tokens;
  std::variant<AnswerReport, AnswerFailure> result;

  const AnswerReport& report() const;  // fails the test when there is none
};
Told Ask(DrivenSession& session, const std::vector<Token>& prompt, uint32_t tokens_max, const SamplingParams& sampling, Client client = {});

// `length` tokens drawn by a seed.
std::vector<Token> SomeTokens(uint64_t seed, uint32_t length, uint32_t vocabulary = 1000);
// A sampler that is not greedy, so that a re-drawn position would show.
SamplingParams Lively(uint32_t seed);

}  // namespace meshnet
