// The worker processes of one embedded cluster: starts them, starts a dead one again a bounded number of times, ends them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace meshnet::cli {

// One worker. Its command is `program arguments… --listen ADDRESS` and the flags of StartChild.
struct StageCommand {
  std::string label;    // for messages: "stage 1 [10,20)"
  std::string address;  // "unix:/path" or "host:port"; the same at each restart
  std::vector<std::string> arguments;
};

struct SupervisorOptions {
  std::string program = "/proc/self/exe";
  Duration ready_limit = std::chrono::seconds(600);  // from start to ready; a worker that takes longer is killed, which counts as a death
  uint32_t restarts_max = 5;                         // of one worker within restart_window
  Duration restart_window = std::chrono::seconds(60);
  Duration stop_limit = std::chrono::seconds(10);    // from the request to end to SIGKILL
  // Called before a stage's worker is started again, on the supervisor's thread: brings back what it needs. A failure is reported, no more.
  std::function<Status(size_t stage)> restore = nullptr;
  Duration silence_limit = std::chrono::seconds(30); // of a worker that serves: then it counts as hung and is killed; 0: never
};

enum class StopKind { kGraceful, kNow };

// Thread-safe. One thread of its own starts and watches all children.
class Supervisor {
 public:
  Supervisor(SupervisorOptions options, std::vector<StageCommand> stages, const Clock& clock);
  ~Supervisor();  // stops all at once when Stop was not called
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  // Starts all; returns at once. Call once.
  void Launch();
  // Until each is ready. A worker that ends with a lasting reason (bad configuration, bad model, memory, refused) before it ever served is not
  // tried again: its code is the answer. kPeerUnreachable, naming stage and range, when one died too often. `cancelled` is asked every
  // 50 ms; then kFailure.
  Status WaitReady(const std::function<bool()>& cancelled);

  // In the order of the stages; -1 for one that does not run now.
  std::vector<int> pids() const;
  // How many serve now.
  size_t ready_count() const;
  // Set once a worker died too often: the cluster cannot be whole again.
  std::optional<Status> failure() const;
  // A worker that does not answer any more: kills it, which counts as a death.
  void Kill(size_t stage, const std::string& why);

  // Ends every worker: SIGTERM, then SIGKILL after stop_limit; kNow is SIGKILL at once, also after a graceful request. Returns at once.
  void RequestStop(StopKind kind);
  // No worker runs any more.
  bool ended() const;
  // RequestStop and wait for the end. Idempotent.
  void Stop(StopKind kind);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace meshnet::cli
