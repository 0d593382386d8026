// Worker processes on the fake engine, and calls to them over our own client that wait for their answer.
#pragma once

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "process/test_process.h"
#include "protocol/shard_link.h"
#include "wire/shard_grpc_client.h"
#include "worker/test_shard.h"

namespace meshnet::conformance {

// A fake_shard_worker. Its folder is removed with it.
class WorkerProcess {
 public:
  // `flags` after the program's name. Does not wait.
  explicit WorkerProcess(std::vector<std::string> flags, process::StartOptions options = {});
  ~WorkerProcess();

  // The address it told when it was ready; empty when it ended instead.
  std::string Address();
  process::TestProcess& process() { return *process_; }
  int descriptor_count() const;

 private:
  std::string folder_;
  std::unique_ptr<process::TestProcess> process_;
};

std::unique_ptr<ShardLink> Link(const std::string& address, const TlsOptions& tls = {});

template <typename T>
using Promise = std::shared_ptr<std::promise<Reply<T>>>;

Reply<ShardDescription> Describe(ShardLink& link, Duration timeout = std::chrono::seconds(30));
ShardDescription MustDescribe(ShardLink& link);
Reply<ShardStats> Stats(ShardLink& link);

// One session over a head and a tail: every step goes through both.
class TwoStageSession {
 public:
  TwoStageSession(ShardLink& head, ShardLink& tail, const ShardDescription& head_shard, const ShardDescription& tail_shard);
  // Greedy tokens for `prompt`; empty, with `error`, when a stage refused or was lost.
  std::vector<Token> Answer(const std::vector<Token>& prompt, size_t count);
  const std::string& error() const { return error_; }

 private:
  struct StageOf {
    ShardLink& link;
    ShardDescription shard;
    Incarnation incarnation;
  };
  bool Open(StageOf& stage);
  std::optional<StepResult> Forward(StageOf& stage, const std::vector<Token>& tokens, std::optional<HiddenState> input, bool sampling);

  std::vector<StageOf> stages_;
  SessionKey key_;
  StepSeq next_{1};
  std::vector<Token> log_;
  std::string error_;
};

}  // namespace meshnet::conformance
