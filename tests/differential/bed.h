// Two shards that differ in their engine only, the clients of both, and a fresh context of llama.cpp that is fed what should have survived.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "differential/operations.h"
#include "differential/twin_engines.h"
#include "engine/llama/llama_shard_engine.h"
#include "tiny/tiny_model.h"
#include "worker/shard_core.h"

namespace meshnet::differential {

// One truncation class and layout.
struct World {
  std::string architecture = "llama";
  uint32_t layers = 4;
  NumericsMode numerics = NumericsMode::kExact;
  tiny::WeightType weights = tiny::WeightType::kQ8_0;
  std::string kv_type;
  HotKvSettings settings{.sessions_max = 4, .context_tokens = 64, .budget_tokens = 200, .ttl_seconds = 1};
  uint32_t cells = 256;          // the engine's budget: sessions * context and more means cells of its own for each sequence
  uint32_t chunk_rows_max = 32;
  uint32_t clients = 6;
  uint32_t window_tokens = 16;
  bool shared_windows = false;
  // Of logits, where sums are taken in another order than in a fresh context; a shard without filling is then compared with as well, bit for bit.
  float tolerance = 0;

  OperationScope scope() const {
    return {.clients = clients, .chunk_rows_max = chunk_rows_max, .context_tokens = settings.context_tokens, .budget_tokens = settings.budget_tokens};
  }
};

using Tally = std::map<std::string, uint64_t>;

class Bed {
 public:
  // The model has been written and poisoned.
  Bed(const World& world, const std::string& model_path);

  // Empty while both shards, llama.cpp's positions and the fresh context agree; otherwise what does not.
  std::string Do(const Operation& operation);
  Tally TakeTally();

 private:
  class Answers : public StepAnswerSink {
   public:
    void OnAnswers(std::vector<StepAnswer> answers) override {
      for (StepAnswer& answer : answers) list.push_back(std::move(answer));
    }
    std::vector<StepAnswer> list;
  };
  struct Side {
    std::unique_ptr<ShardCore> core;
    std::shared_ptr<Answers> answers = std::make_shared<Answers>();
  };
  struct Client {
    SessionId id;
    Epoch epoch{1};
    bool live = false;
    std::vector<Token> log;                        // committed
    std::vector<uint32_t> shapes;                  // the steps that it consists of
    StepSeq last;
    std::deque<uint64_t> flight;                   // steps without an answer, by request
    std::optional<uint64_t> newest;                // request
    std::map<uint64_t, std::vector<float>> rows;   // by step: what came out
  };

  Result<std::unique_ptr<RealTwin>> MakeReal(const std::string& model_path, Misfortune& misfortune, bool fills);
  // Of all shards.
  template <typename Call>
  void Each(Call call) {
    for (Side* side : {&real_, &fake_, &plain_}) {
      if (side->core) call(*side);
    }
  }
  void Open(Client& client, const Operation& operation);
  void SendStep(Client& client, const Operation& operation);
  void Resend(Client& client, bool conflict);
  void Send(Client& client, Step step, bool again);
  std::vector<Token> Projected(const Client& client) const;
  void RunCalls(const Operation& operation);

  // Compares what was answered since the last time, and tells the clients.
  void Settle();
  static void GoBack(Client& client, uint32_t keep);
  void SettleRefusal(const Refusal& real, const Refusal& fake, const Step& step);
  void SettleResult(const RecordedResult& real, const RecordedResult& fake, const Step& step);
  void ComparePlain(const std::vector<StepAnswer>& real, const std::vector<StepAnswer>& plain);
  void CompareRefusals(const Refusal& real, const Refusal& fake);
  // With a fresh context that is fed the client's tokens.
  void CompareRows(const Client& client, const Step& step, const StepResult& result);
  void CompareState();
  Client& Owner(const Step& step);
  void Complain(const std::string& what) {
    if (problem_.empty()) problem_ = what;
  }
  template <typename T>
  void Same(const char* what, const T& real, const T& fake);

  const World world_;
  ManualClock clock_;
  Misfortune misfortune_, plain_misfortune_;
  ShardDescription description_;
  RealTwin* real_engine_ = nullptr;
  FakeTwin* fake_engine_ = nullptr;
  Side real_, fake_;
  Side plain_;                                    // as the real one, without filling; empty unless there is a tolerance
  std::unique_ptr<ReferenceContext> fresh_;
  std::vector<Client> clients_;
  std::map<uint64_t, Step> sent_;                 // by request
  uint64_t next_request_ = 1;
  std::string problem_;
  Tally tally_;
};

}  // namespace meshnet::differential
