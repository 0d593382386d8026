// For tests: a ShardHost on a fake engine that can be held in the middle of a call, and a session that is driven step by step.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/system_clock.h"
#include "engine/fake_engine.h"
#include "protocol/prefix_digest.h"
#include "worker/in_process_link.h"
#include "worker/shard_host.h"

namespace meshnet {

// Holds engine calls while it is closed.
class EngineGate {
 public:
  void Close() { Set(true); }
  void Open() { Set(false); }
  // Blocks until a call stands at the closed gate.
  void WaitForCall() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return held_ > 0; });
  }
  void Pass() {
    std::unique_lock lock(mutex_);
    ++held_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return !closed_; });
    --held_;
  }
  std::atomic<int> sampling_checks{0};
  // From now on past_len of the engine is one too few: a broken invariant.
  void LoseTokens() { loses_tokens_ = true; }
  bool loses_tokens() const { return loses_tokens_; }
  // From now on Remove does nothing.
  void KeepCells() { keeps_cells_ = true; }
  bool keeps_cells() const { return keeps_cells_; }
  // From now on every row that comes out overflowed, and the engine did not notice.
  void OverflowRows() { overflows_ = true; }
  bool overflows() const { return overflows_; }

 private:
  void Set(bool closed) {
    std::lock_guard lock(mutex_);
    closed_ = closed;
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false;
  int held_ = 0;
  std::atomic<bool> loses_tokens_{false}, keeps_cells_{false}, overflows_{false};
};

class GatedEngine : public FakeEngine {
 public:
  GatedEngine(FakeEngineOptions options, EngineGate& gate) : FakeEngine(WithGate(std::move(options), gate)), gate_(gate) {}
  PastLen past_len(SequenceId sequence) const override {
    PastLen truth = FakeEngine::past_len(sequence);
    return gate_.loses_tokens() && truth.value > 0 ? PastLen(truth.value - 1) : truth;
  }
  std::vector<EngineOutcome> Run(std::span<const EngineStep> steps) override {
    std::vector<EngineOutcome> outcomes = FakeEngine::Run(steps);
    if (!gate_.overflows()) return outcomes;
    for (EngineOutcome& outcome : outcomes) {
      const uint32_t rows = outcome.output.rows(), width = outcome.output.width();
      if (rows > 0) outcome.output = HiddenState(rows, width, std::vector<float>(size_t{rows} * width, std::numeric_limits<float>::infinity()));
    }
    return outcomes;
  }
  void Remove(SequenceId sequence) override {
    if (!gate_.keeps_cells()) FakeEngine::Remove(sequence);
  }
  Status CheckSampling(const SamplingParams& params) const override {
    ++gate_.sampling_checks;
    return FakeEngine::CheckSampling(params);
  }

 private:
  static FakeEngineOptions WithGate(FakeEngineOptions options, EngineGate& gate) {
    options.on_run = [&gate, before = std::move(options.on_run)](std::span<const EngineStep> steps) {
      if (before) before(steps);
      gate.Pass();
    };
    return options;
  }
  EngineGate& gate_;
};

inline SamplingParams Greedy() {
  SamplingParams params;
  params.temperature = 0;
  return params;
}

inline Time InAMinute() { return std::chrono::steady_clock::now() + std::chrono::minutes(1); }

inline std::future<Reply<StepResult>> SendOver(ShardLink& link, const Step& step, Time deadline = InAMinute()) {
  auto promise = std::make_shared<std::promise<Reply<StepResult>>>();
  link.Forward(step, deadline, [promise](Reply<StepResult> reply) { promise->set_value(std::move(reply)); });
  return promise->get_future();
}

// A whole model on one shard, in this process.
class TestShard {
 public:
  explicit TestShard(HotKvSettings settings = {}, const Clock* clock = nullptr, FakeEngineOptions engine = WholeModel(),
                     std::function<void(ShardState)> on_state = {}) {
    if (engine.range == LayerRange{0, 6}) engine.range = {0, engine.model.layer_count};
    engine.sessions_max = std::max(engine.sessions_max, 1u);
    model_ = engine.model;
    ShardHostOptions options;
    options.hot_kv = settings;
    options.on_state = std::move(on_state);
    ShardDescription description;
    description.model_root.bytes.fill(0xab);
    description.incarnation = RandomId<Incarnation>();
    host_ = std::make_unique<ShardHost>(options, description,
                                        [this, engine] {
                                          auto made = std::make_unique<GatedEngine>(engine, gate_);
                                          engine_ = made.get();
                                          return Result<std::unique_ptr<Engine>>(std::move(made));
                                        },
                                        clock ? *clock : system_clock_);
    Status status = host_->WaitLoaded();
    MESHNET_CHECK(status.ok());
    link_ = ConnectInProcess(*host_, "test shard");
  }
  ~TestShard() {
    gate_.Open();
    link_.reset();
  }

  static FakeEngineOptions WholeModel() {
    FakeEngineOptions options;
    options.sessions_max = 256;
    options.context_tokens = 1 << 20;
    options.budget_tokens = 1 << 24;
    return options;
  }

  ShardHost& host() { return *host_; }
  ShardLink& link() { return *link_; }
  FakeEngine& engine() { return *engine_; }
  EngineGate& engine_gate() { return gate_; }
  const FakeModel& model() const { return model_; }
  ShardDescription description() const { return host_->description(); }

  Reply<OpenReply> Open(const OpenRequest& request) {
    std::promise<Reply<OpenReply>> promise;
    link_->Open(request, InAMinute(), [&](Reply<OpenReply> reply) { promise.set_value(std::move(reply)); });
    return promise.get_future().get();
  }
  ShardStats Stats() {
    std::promise<Reply<ShardStats>> promise;
    link_->Stats(InAMinute(), [&](Reply<ShardStats> reply) { promise.set_value(std::move(reply)); });
    return std::get<ShardStats>(promise.get_future().get());
  }
  ReleaseOutcome Release(const SessionKey& key) {
    std::promise<Reply<ReleaseOutcome>> promise;
    link_->Release(key, InAMinute(), [&](Reply<ReleaseOutcome> reply) { promise.set_value(std::move(reply)); });
    return std::get<ReleaseOutcome>(promise.get_future().get());
  }
  // For what another thread is about to do; a test that waits in vain runs into ctest's limit.
  static void WaitFor(const std::function<bool()>& holds) {
    while (!holds()) std::this_thread::yield();
  }

 private:
  SystemClock system_clock_;
  EngineGate gate_;
  FakeModel model_;
  FakeEngine* engine_ = nullptr;
  std::unique_ptr<ShardHost> host_;
  std::unique_ptr<ShardLink> link_;
};

// One session on one shard: keeps its token log and numbers.
class TestSession {
 public:
  TestSession(ShardLink& link, const ShardDescription& shard, uint8_t number, Epoch epoch = Epoch(1)) : link_(link), shard_(shard) {
    key_.session.bytes.fill(number);
    key_.epoch = epoch;
    incarnation_ = shard.incarnation;
  }
  const SessionKey& key() const { return key_; }
  StepSeq next() const { return next_; }
  const std::vector<Token>& log() const { return log_; }

  void AskOpen(ShardLink::Done<OpenReply> done, uint32_t reserve = 32) {
    OpenRequest request;
    request.key = key_;
    request.model_root = shard_.model_root;
    request.range = shard_.range;
    request.reserve_tokens = reserve;
    link_.Open(request, InAMinute(), std::move(done));
  }
  Reply<OpenReply> TryOpen(uint32_t reserve = 32) {
    auto promise = std::make_shared<std::promise<Reply<OpenReply>>>();
    AskOpen([promise](Reply<OpenReply> reply) { promise->set_value(std::move(reply)); }, reserve);
    Reply<OpenReply> reply = promise->get_future().get();
    if (OpenReply* opened = std::get_if<OpenReply>(&reply)) {
      incarnation_ = opened->incarnation;
      next_ = opened->next_step;
      acked_ = StepSeq(next_.value - 1);
      log_.resize(opened->past_len.value);
    }
    return reply;
  }
  bool Open(uint32_t reserve = 32) { return std::holds_alternative<OpenReply>(TryOpen(reserve)); }
  // The numbers as they were before steps that did not commit.
  void Reset() { MESHNET_CHECK(Open()); }
  void GoBack(uint32_t keep) { log_.resize(keep); }

  Step PrefillStep(std::vector<Token> tokens, RowsWanted rows, std::optional<SamplingParams> sampling = std::nullopt) const {
    Step step;
    step.key = key_;
    step.incarnation = incarnation_;
    step.seq = next_;
    step.start = PastLen(static_cast<uint32_t>(log_.size()));
    step.prefix_digest = DigestOfPrefix("", log_);
    step.tokens = std::move(tokens);
    step.rows = rows;
    step.sampling = std::move(sampling);
    step.ack = acked_;
    if (!shard_.is_head()) {
      std::vector<float> values(step.tokens.size() * shard_.boundary_width, 0.5f);
      step.input = HiddenState(static_cast<uint32_t>(step.tokens.size()), shard_.boundary_width, std::move(values));
    }
    return step;
  }
  std::future<Reply<StepResult>> Send(const Step& step) { return SendOver(link_, step); }

  // Sent as if it will succeed: the next step goes behind it.
  std::future<Reply<StepResult>> Prefill(std::vector<Token> tokens, RowsWanted rows, std::optional<SamplingParams> sampling = std::nullopt) {
    return Advance(PrefillStep(std::move(tokens), rows, std::move(sampling)));
  }
  std::future<Reply<StepResult>> Decode(Token token) {
    Step step = PrefillStep({token}, RowsWanted::kLast);
    step.kind = StepKind::kDecode;
    return Advance(std::move(step));
  }
  StepResult MustPrefill(std::vector<Token> tokens, RowsWanted rows, std::optional<SamplingParams> sampling = std::nullopt) {
    return Must(Prefill(std::move(tokens), rows, std::move(sampling)).get());
  }
  StepResult MustDecode(Token token) { return Must(Decode(token).get()); }

 private:
  std::future<Reply<StepResult>> Advance(Step step) {
    log_.insert(log_.end(), step.tokens.begin(), step.tokens.end());
    next_ = next_.Next();
    return Send(step);
  }
  StepResult Must(Reply<StepResult> reply) {
    if (Refusal* refusal = std::get_if<Refusal>(&reply)) Complain(refusal->message);
    if (TransportFault* fault = std::get_if<TransportFault>(&reply)) Complain(fault->message);
    acked_ = std::get<StepResult>(reply).seq;
    return std::move(std::get<StepResult>(reply));
  }
  static void Complain(const std::string& message) { std::fprintf(stderr, "a step failed: %s\n", message.c_str()); }

  ShardLink& link_;
  const ShardDescription shard_;
  SessionKey key_;
  Incarnation incarnation_;
  StepSeq next_{1};
  StepSeq acked_;
  std::vector<Token> log_;
};

}  // namespace meshnet
