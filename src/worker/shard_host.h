// A shard and its one engine thread: commands of any thread go through a bounded mailbox, which is emptied between engine calls.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine/engine.h"
#include "protocol/shard_link.h"
#include "worker/answer_sink.h"
#include "worker/host_turn_file.h"
#include "worker/hot_kv_settings.h"
#include "worker/mailbox.h"
#include "worker/shard_core.h"

namespace meshnet {

struct ShardHostOptions {
  HotKvSettings hot_kv;
  std::string turn_path;                       // empty: no turns
  uint64_t frame_bytes_cap = 64u << 20;        // what the transport takes
  MailboxLimits mailbox;
  // A drain is over when no session had a step for so long.
  Duration drain_quiet = std::chrono::seconds(5);
  // Told of each new state, before Open begins to be refused for it. Any thread, no lock held.
  std::function<void(ShardState)> on_state;
};

// All calls are thread-safe and return at once; each `done` is called exactly once, on the engine thread, or at once on the caller's when the
// shard does not serve.
class ShardHost {
 public:
  using MakeEngine = std::function<Result<std::unique_ptr<Engine>>()>;

  // Starts the engine thread, which makes the engine first. `clock` outlives the host. `description` carries identity and prediction.
  ShardHost(ShardHostOptions options, ShardDescription description, MakeEngine make_engine, const Clock& clock);
  // Waits for a running engine call; what is still unanswered is refused.
  ~ShardHost();
  ShardHost(const ShardHost&) = delete;
  ShardHost& operator=(const ShardHost&) = delete;

  // Blocks until the engine is there, or says why there is none.
  Status WaitLoaded();

  ShardDescription description() const;
  // What steps must fit; only while it serves.
  ShardShape shape() const;

  void Open(OpenRequest request, ShardLink::Done<OpenReply> done);
  // In this order: the steps, then the cancels. `bytes`: what the steps hold.
  void Submit(std::vector<SubmittedStep> steps, std::vector<SessionKey> cancels, std::shared_ptr<StepAnswerSink> sink, uint64_t bytes);
  void EndStream(std::shared_ptr<StepAnswerSink> sink);
  void Release(SessionKey key, ShardLink::Done<ReleaseOutcome> done);
  void Stats(ShardLink::Done<ShardStats> done);
  // Open is refused from here on; live sessions go on. Once they are quiet they end too, if `then_end`.
  void BeginDrain(bool then_end);

  // Runs `then` now, or on the engine thread once the mailbox has room again: whoever reads messages asks before the next one.
  void WhenRoom(std::function<void()> then) { mailbox_.WhenRoom(std::move(then)); }

  // Why nothing can be asked of the shard now: it starts, stops or is poisoned. Nothing while it serves or drains.
  std::optional<Refusal> not_serving() const;
  // A refusal that was made before the shard saw the request, with the shard's name and incarnation.
  Refusal Named(Refusal refusal) const;

  // The drain ended all sessions.
  bool drained() const;
  // Why it serves no more: the engine could not be made, or an invariant broke. Ok while it serves.
  Status trouble() const;

  // Lets the engine thread look at the clock again (tests with a clock of their own).
  void Wake() { mailbox_.Wake(); }
  // Runs `look` on the engine thread and waits for it (tests). Not from the engine thread.
  void Inspect(std::function<void(ShardCore&)> look);
  // Ends the engine thread after the call that runs; what is unanswered is refused. Idempotent.
  void Stop();

 private:
  struct OpenCommand { OpenRequest request; ShardLink::Done<OpenReply> done; };
  struct StepsCommand { std::vector<SubmittedStep> steps; std::vector<SessionKey> cancels; std::shared_ptr<StepAnswerSink> sink; };
  struct EndStreamCommand { std::shared_ptr<StepAnswerSink> sink; };
  struct ReleaseCommand { SessionKey key; ShardLink::Done<ReleaseOutcome> done; };
  struct StatsCommand { ShardLink::Done<ShardStats> done; };
  struct DrainCommand { bool then_end = false; };
  struct InspectCommand { std::function<void(ShardCore&)> look; };
  using Command = std::variant<OpenCommand, StepsCommand, EndStreamCommand, ReleaseCommand, StatsCommand, DrainCommand, InspectCommand>;

  // To the engine thread, or refused at once.
  void Post(Command command, uint64_t bytes);
  void Loop();
  std::unique_ptr<ShardCore> Load();
  // How long the thread may sleep; nothing: until a command comes.
  std::optional<Duration> SleepFor(const ShardCore& core, const Scheduler::Plan& plan) const;
  void Receive(ShardCore& core, std::optional<Duration> timeout);
  void Apply(ShardCore& core, Command& command);
  void RunWithTurn(ShardCore& core, const Scheduler::Plan& plan);
  void TellPoison(ShardCore& core);
  void AdvanceDrain(ShardCore& core);
  void RefuseCommand(Command& command, const Refusal& refusal);
  void SetState(ShardState state);

  const ShardHostOptions options_;
  const MakeEngine make_engine_;
  const Clock& clock_;
  Mailbox<Command> mailbox_;

  // Of the engine thread.
  std::unique_ptr<HostTurn> turn_;
  bool ending_ = false;

  mutable std::mutex mutex_;  // guards all below
  std::condition_variable loaded_changed_;
  ShardDescription description_;
  bool loaded_ = false;
  bool stopping_ = false;
  bool drained_ = false;
  Status trouble_;

  std::thread thread_;
};

}  // namespace meshnet
