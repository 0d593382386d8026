// For tests: one shard worker in this process, the real hot KV over the fake engine, behind a ShardLink. It can be blocked in the middle of an
// engine call, killed and started anew.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "engine/fake_engine.h"
#include "kv/hot_kv.h"
#include "protocol/shard_link.h"

namespace meshnet {

struct LocalShardOptions {
  FakeModel model;
  LayerRange range;
  std::string address;
  uint32_t sessions_max = 8;
  uint32_t context_tokens = 512;
  uint32_t budget_tokens = 8192;
  uint32_t chunk_rows_max = 32;
};

class LocalShard : public ShardLink {
 public:
  LocalShard(LocalShardOptions options, const Clock& clock);
  ~LocalShard() override;

  // The process dies: what was asked and what will be asked ends as a TransportFault.
  void Kill();
  // A new process at the same address, empty and with another incarnation.
  void Restart();
  // Engine calls wait from now on, after `calls` more of them; `Unblock` lets them go on.
  void Block(uint32_t calls = 0);
  void Unblock();
  // Waits until an engine call stands still in Block.
  void WaitBlocked();
  // Waits until somebody cancelled a session's steps, counted since the last Block.
  bool WaitCancel();
  // Waits until `claim` holds of the stats; false after a long while. For what happens on other threads, without sleeping.
  bool WaitStats(const std::function<bool(const ShardStats&)>& claim);
  ShardStats StatsNow() const;
  // Tokens of all committed steps since the start of the process.
  uint64_t tokens_computed() const;

  void Describe(Time deadline, Done<ShardDescription> done) override;
  void Open(OpenRequest request, Time deadline, Done<OpenReply> done) override;
  void Forward(Step step, Time deadline, Done<StepResult> done) override;
  void Cancel(SessionKey key) override;
  void Release(SessionKey key, Time deadline, Done<ReleaseOutcome> done) override;
  void Stats(Time deadline, Done<ShardStats> done) override;
  void Drain(Time deadline, Done<ShardState> done) override;
  std::string address() const override { return options_.address; }

 private:
  struct Process;
  // What waits for a turn of the engine.
  struct Queued {
    kv::Ticket ticket;
    Step step;
    Done<StepResult> done;
  };
  using Task = std::function<void(Process&)>;

  void Post(Task task, std::function<void()> if_dead);
  void Loop();
  void RunOne(Process& process);
  void Answer(Process& process, const kv::Ticket& ticket, Reply<StepResult> reply);
  void Remove(Process& process, const kv::Effects& effects);
  void Publish(Process& process);
  std::unique_ptr<Process> NewProcess();

  const LocalShardOptions options_;
  const Clock& clock_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  struct Posted {
    Task task;
    std::function<void()> if_dead;
  };
  std::deque<Posted> tasks_;
  bool stopping_ = false, alive_ = true, restart_ = false;
  bool block_ = false, blocked_ = false;
  uint32_t calls_left_ = 0;  // before the next one stands still
  uint32_t cancels_ = 0;
  ShardStats stats_;
  ShardDescription description_;
  uint64_t tokens_computed_ = 0;

  std::thread thread_;
};

}  // namespace meshnet
