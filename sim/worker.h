// A worker's address: processes come and go behind it. Each is the real ShardCore (hot KV, schedule, fake engine) in virtual time; what is made
// again here is only the loop around it that ShardHost runs on its engine thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "audit.h"
#include "engine/fake_engine.h"
#include "process_time.h"
#include "protocol/describe.h"
#include "protocol/refusal.h"
#include "worker/shard_core.h"
#include "world.h"

namespace meshnet::sim {

class Worker {
 public:
  static constexpr uint32_t kEngineFaults = 6;
  using Command = std::function<void(ShardCore&)>;

  Worker(World& world, uint8_t number, uint32_t context_tokens);
  ~Worker();

  Place place() const { return {'w', number_}; }
  ProcessTime& time() { return time_; }

  // A new process loads, and serves after a while. Nothing when there is one.
  void Start();
  // The process is gone, its host too unless `heard`: then whoever is connected hears of it.
  void Crash(bool heard);
  void Pause(Duration duration);
  void JumpClock(Duration duration);
  void BeginDrain();
  // The next engine call or cut fails; `kind` in [0, kEngineFaults).
  void Inject(uint32_t kind);
  // Nothing fails any more, and a process is there.
  void Heal();

  bool alive() const { return process_ != nullptr; }
  bool serving() const { return process_ != nullptr && process_->state == ShardState::kServing; }
  // Only while alive.
  const ShardDescription& description() const { return process_->description; }
  std::optional<Refusal> not_serving() const;
  // Into the mailbox of the process; only while it is alive and not_serving says nothing.
  void Post(Command command);
  // Of the process that lives; only while it does.
  Audit& audit() { return process_->audit; }
  // Called with `heard` when a process ended.
  void OnDeath(std::function<void(bool)> hook) { on_death_.push_back(std::move(hook)); }

  // Nothing is held or reserved any more.
  void CheckEmpty();

 private:
  // The time of the core: ahead of the process while the engine computes, whose call takes no time of its own here.
  class CoreClock : public Clock {
   public:
    explicit CoreClock(const ProcessTime& time) : time_(time) {}
    Time Now() const override { return time_.Now() + in_call; }
    Duration in_call{0};

   private:
    const ProcessTime& time_;
  };
  class FaultyEngine;
  struct Process {
    explicit Process(Audit a) : audit(std::move(a)) {}
    Audit audit;
    uint64_t number = 0;
    ShardDescription description;
    ShardState state = ShardState::kStarting;
    FaultyEngine* engine = nullptr;  // owned by the core
    std::unique_ptr<ShardCore> core;
    std::vector<Command> mailbox;
    bool busy = false;               // the engine computes
    bool ending = false;             // drains, and ends when it is quiet
    std::optional<EventLoop::Id> wake;
  };

  void Serve();
  void Wake(Time when);
  void Turn();
  void RunEngine(const Scheduler::Plan& plan);
  void EngineDone();
  void Look();
  bool DrainIsOver();
  void End(bool heard);
  // Runs `act` in the process that is there now, at `when`; not at all when it is gone by then.
  void InProcess(Time when, std::function<void()> act);

  World& world_;
  const uint8_t number_;
  const WorkerShape& shape_;
  const uint32_t context_tokens_;  // of the engine; equal on all stages
  ProcessTime time_;
  CoreClock clock_;
  std::unique_ptr<Process> process_;
  uint64_t processes_ = 0;
  uint64_t turns_ = 0;
  std::vector<std::function<void(bool)>> on_death_;
};

}  // namespace meshnet::sim
