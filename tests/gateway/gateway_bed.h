// For tests: a whole gateway on port 0 over real shard hosts in this process, with the fake engine and the fake tokenizer.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/system_clock.h"
#include "cluster.h"
#include "gateway/gateway_server.h"
#include "gateway/raw_http_client.h"
#include "session/route.h"
#include "text/fake_text_model.h"

namespace meshnet::gateway {

struct BedOptions {
  GatewayOptions gateway = {};
  GatewayLimits limits = {};
  uint32_t sessions_max = 8;
  uint32_t context_tokens = 512;
  uint32_t answer_tokens = 0;     // above 0: every answer ends after that many tokens
  bool wait_ready = true;
  Duration monitor_interval = std::chrono::milliseconds(50);
  bool has_tokenizer = true;
};

// Looks again and again until `claim` holds; the test fails when it does not after a long while.
void WaitUntil(const std::function<bool()>& claim);

// One stage of the bed's route: its worker can be held in the middle of an engine call, killed and started anew.
class BedStage {
 public:
  BedStage(Cluster& cluster, size_t stage);
  // What the cluster calls at the start of each engine call.
  void OnRun();

  void Kill();
  void Restart();
  // Engine calls wait from now on, after `calls` more of them; `Unblock` lets them go on.
  void Block(uint32_t calls = 0);
  void Unblock();
  void WaitBlocked();
  // Somebody cancelled a session's steps since the last Block.
  bool WaitCancel();
  // Waits until `claim` holds of the worker's stats, which it gives between engine calls.
  bool WaitStats(const std::function<bool(const ShardStats&)>& claim);
  ShardStats StatsNow();
  // Tokens of all steps that the process has done.
  uint64_t tokens_computed();

 private:
  Cluster& cluster_;
  const size_t stage_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool block_ = false, blocked_ = false;
  uint32_t calls_left_ = 0;
  uint32_t cancels_ = 0;
};

class GatewayBed {
 public:
  explicit GatewayBed(BedOptions options = {});
  ~GatewayBed();

  // One request on a connection of its own; the whole reply, its body's chunks joined by BodyOf.
  std::string Call(const std::string& method, const std::string& path, const std::string& body = "", const std::string& headers = "");
  std::string Post(const std::string& path, const nlohmann::json& body, const std::string& headers = "") {
    return Call("POST", path, body.dump(), headers);
  }
  std::string Get(const std::string& path, const std::string& headers = "") { return Call("GET", path, "", headers); }
  // A POST's bytes, for clients that do something special after it.
  static std::string PostBytes(const std::string& path, const nlohmann::json& body);

  // What the fake tokenizer and model make of a chat or completion prompt: the answer's text.
  std::string ExpectedCompletion(const std::string& prompt, uint32_t tokens_max) const;
  // Until /readyz answers 200 (true) or another status (false).
  void WaitReady(bool ready);
  // Until no worker has a running or queued step.
  void WaitIdle();
  // The value of an unlabelled or fully labelled series, such as `meshnet_requests_running`; -1 when it is missing.
  double Metric(const std::string& series);

  Gateway& gateway() { return *gateway_; }
  BedStage& shard(size_t stage) { return *stages_[stage]; }
  Cluster& cluster() { return *cluster_; }
  size_t stages() const { return stages_.size(); }
  std::string address() const { return gateway_->address(); }
  const FakeModel& model() const { return model_; }

 private:
  BedOptions options_;
  FakeModel model_;
  std::vector<std::unique_ptr<BedStage>> stages_;
  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<TextModel> text_;
  std::unique_ptr<Gateway> gateway_;
};

// The JSON of a reply's body; null when it is not JSON.
nlohmann::json JsonOf(const std::string& reply);
// The `data:` payloads of an SSE body, in order.
std::vector<std::string> EventsOf(const std::string& body);

}  // namespace meshnet::gateway
