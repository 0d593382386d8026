// Watches the route with two threads of its own: one asks every worker for its state about once a second, the other proves a route with new
// workers by canary runs before it is called ready. Thread-safe.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "gateway/metrics.h"
#include "session/route.h"
#include "session/session_pool.h"

namespace meshnet::gateway {

struct MonitorOptions {
  Duration interval = std::chrono::seconds(1);
  Duration answer_limit = std::chrono::seconds(2);   // of one worker, to a question about its state
  Duration canary_limit = std::chrono::seconds(60);  // waiting for a session to run on
  std::vector<Token> canary_prompt;                  // token ids below the vocabulary size; not empty
};

// What is known of one worker. Empty parts were never answered.
struct WorkerView {
  std::string address;
  std::optional<ShardDescription> description;
  std::optional<ShardStats> stats;
  bool answering = false;  // it described itself the last time; stats may be older: they wait for the end of an engine call
};

class RouteMonitor {
 public:
  // Everything outlives the monitor.
  RouteMonitor(Route& route, std::vector<ShardLink*> links, SessionPool& pool, Metrics& metrics, const Clock& clock, MonitorOptions options);
  ~RouteMonitor();  // as Stop
  // Tells the threads to end.
  void BeginStop();
  // The same, and waits for them.
  void Stop();

  // Empty: the route is proven, with the very workers it has now, and every stage answered lately. Otherwise why not, naming stage, range and cause.
  std::string not_ready() const;
  // Asks every worker anew, for at most `limit`; one that is silent is shown as it was last seen.
  std::vector<WorkerView> AskWorkers(Duration limit);

 private:
  void Loop();
  void Judge(const std::vector<WorkerView>& workers);
  // Canaries stand in line for a session and may take long, so the looks at the workers do not wait for them.
  void ProveLoop();
  // The canary's verdict on the route as it is now; empty when proven.
  std::string Prove();
  std::optional<Token> RunCanary(std::string* trouble);
  // What the latest look found.
  void Say(std::string trouble);
  void TellLog();

  Route& route_;
  const std::vector<ShardLink*> links_;
  SessionPool& pool_;
  Metrics& metrics_;
  const Clock& clock_;
  const MonitorOptions options_;

  mutable std::mutex mutex_;  // guards all below but the threads
  std::condition_variable wake_;
  bool stopping_ = false;
  std::string trouble_ = "the workers have not been asked yet";
  std::string told_ = "nothing yet";  // to the log
  Time said_{};  // when the log was last told of a trouble
  std::vector<WorkerView> workers_;
  std::vector<Incarnation> canary_workers_;  // whom the latest canaries went through, or do now
  std::string canary_trouble_;               // what they found; empty: proven
  bool canary_runs_ = false;

  std::thread thread_, prover_;
};

}  // namespace meshnet::gateway
