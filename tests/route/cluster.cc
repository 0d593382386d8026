#include "cluster.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <random>

#include "worker/in_process_link.h"

namespace meshnet {

// One address of the route; processes come and go behind it.
struct Cluster::StageSlot {
  struct Process {
    FakeEngine* engine = nullptr;  // owned by the host
    std::unique_ptr<ShardHost> host;
    std::unique_ptr<ShardLink> link;
  };

  LayerRange range;
  std::mutex mutex;                                   // guards `processes`
  std::vector<std::unique_ptr<Process>> processes;    // the dead stay: calls may still be inside them
  std::unique_ptr<FaultyLink> link;                   // destroyed first
  std::atomic<int> describes{0};
};

namespace {

std::vector<LayerRange> Ranges(const ClusterOptions& options) {
  std::vector<LayerRange> ranges;
  uint32_t begin = 0;
  for (uint32_t cut : options.cuts) {
    ranges.push_back({begin, cut});
    begin = cut;
  }
  ranges.push_back({begin, options.model.layer_count});
  return ranges;
}

}  // namespace

Cluster::Cluster(ClusterOptions options) : options_(std::move(options)) {
  std::vector<ShardLink*> links;
  for (const LayerRange& range : Ranges(options_)) {
    const size_t stage = stages_.size();
    auto slot = std::make_unique<StageSlot>();
    slot->range = range;
    slot->link = std::make_unique<FaultyLink>(nullptr, "shard" + std::to_string(stage), options_.seed * 31 + stage, options_.rates);
    links.push_back(slot->link.get());
    stages_.push_back(std::move(slot));
    Start(stage);
  }
  route = std::make_unique<Route>(links, clock);
  // A host whose engine is there may still say for a moment that it is loading.
  Status status = route->Connect(std::chrono::seconds(30));
  if (!status.ok()) status = route->WaitForRepair(0, clock.Now() + std::chrono::seconds(60), nullptr);
  EXPECT_TRUE(status.ok()) << status.message();
}

Cluster::~Cluster() {
  route.reset();
  for (auto& slot : stages_) slot->link.reset();
}

void Cluster::Start(size_t stage) {
  StageSlot& slot = *stages_[stage];
  auto process = std::make_unique<StageSlot::Process>();
  FakeEngineOptions engine_options;
  engine_options.model = options_.model;
  engine_options.range = slot.range;
  engine_options.sessions_max = options_.sessions_max;
  engine_options.context_tokens = options_.context_tokens;
  engine_options.budget_tokens = options_.budget_tokens;
  engine_options.chunk_rows_max = options_.chunk_rows_max;
  engine_options.truncation_class = options_.truncation_class;
  engine_options.window_tokens = options_.window_tokens;
  if (options_.on_run) engine_options.on_run = [this, stage](std::span<const EngineStep>) { options_.on_run(stage); };
  ShardHostOptions host_options;
  host_options.hot_kv = {options_.sessions_max, options_.context_tokens, options_.budget_tokens, 600};
  ShardDescription description;
  description.incarnation = RandomId<Incarnation>();
  description.model_root.bytes.fill(0x5a);
  description.range = slot.range;
  description.layer_count = options_.model.layer_count;
  FakeEngine** made = &process->engine;
  auto make = [engine_options, made]() -> Result<std::unique_ptr<Engine>> {
    auto engine = std::make_unique<FakeEngine>(engine_options);
    *made = engine.get();
    return std::unique_ptr<Engine>(std::move(engine));
  };
  process->host = std::make_unique<ShardHost>(host_options, description, make, clock);
  const Status loaded = process->host->WaitLoaded();
  EXPECT_TRUE(loaded.ok()) << loaded.message();
  process->link = ConnectInProcess(*process->host, slot.link->address());
  ShardLink* inner = process->link.get();
  {
    std::lock_guard lock(slot.mutex);
    slot.processes.push_back(std::move(process));
  }
  slot.link->Revive(inner);
}

void Cluster::KillFor(size_t stage, int describes) {
  StageSlot& slot = *stages_[stage];
  slot.describes = describes;
  slot.link->OnDescribeDead([this, stage, &slot] {
    if (--slot.describes == 0) Start(stage);
  });
  Kill(stage);
}

FaultyLink& Cluster::link(size_t stage) { return *stages_[stage]->link; }

FakeEngine& Cluster::engine(size_t stage) {
  std::lock_guard lock(stages_[stage]->mutex);
  return *stages_[stage]->processes.back()->engine;
}

ShardHost& Cluster::host(size_t stage) {
  std::lock_guard lock(stages_[stage]->mutex);
  return *stages_[stage]->processes.back()->host;
}

std::string Cluster::Leftovers() {
  std::string text;
  for (size_t stage = 0; stage < stages_.size(); ++stage) {
    // Queued behind everything that was asked before.
    std::promise<Reply<ShardStats>> promise;
    host(stage).Stats([&promise](Reply<ShardStats> reply) { promise.set_value(std::move(reply)); });
    const Reply<ShardStats> reply = promise.get_future().get();
    const auto* stats = std::get_if<ShardStats>(&reply);
    if (stats == nullptr) {
      text += "stage " + std::to_string(stage) + " does not answer; ";
      continue;
    }
    if (stats->sessions_live != 0 || stats->kv_tokens_reserved != 0 || stats->steps_queued != 0 || stats->sequences_free != options_.sessions_max) {
      text += "stage " + std::to_string(stage) + ": " + std::to_string(stats->sessions_live) + " sessions, " +
              std::to_string(stats->kv_tokens_reserved) + " tokens reserved, " + std::to_string(stats->steps_queued) + " steps queued, " +
              std::to_string(stats->sequences_free) + " sequences free; ";
    }
    host(stage).Inspect([](ShardCore& core) { core.CheckInvariants(); });
  }
  return text;
}

SinkVerdict Client::OnToken(const SampledToken& token) {
  tokens.push_back(token.token);
  if (on_token) on_token(tokens.size());
  return SinkVerdict::kGoOn;
}

void Client::OnPrefill(uint32_t done_tokens, uint32_t) {
  if (on_prefill) on_prefill(done_tokens);
}

bool Client::Cancelled() { return cancelled && cancelled(); }

const AnswerReport& Told::report() const {
  static const AnswerReport none;
  if (const auto* failure = std::get_if<AnswerFailure>(&result)) {
    ADD_FAILURE() << "failed after " << tokens.size() << " tokens: " << failure->message;
    return none;
  }
  return std::get<AnswerReport>(result);
}

Told Ask(DrivenSession& session, const std::vector<Token>& prompt, uint32_t tokens_max, const SamplingParams& sampling, Client client) {
  auto result = session.Answer({prompt, sampling, tokens_max}, client);
  return {std::move(client.tokens), std::move(result)};
}

std::vector<Token> SomeTokens(uint64_t seed, uint32_t length, uint32_t vocabulary) {
  std::mt19937_64 random(seed);
  std::vector<Token> tokens(length);
  for (Token& token : tokens) token = static_cast<Token>(random() % vocabulary);
  return tokens;
}

SamplingParams Lively(uint32_t seed) {
  SamplingParams sampling;
  sampling.seed = seed;
  sampling.temperature = 0.9f;
  return sampling;
}

}  // namespace meshnet
