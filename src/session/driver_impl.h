// The inside of DrivenSession: the effects around the pure decisions of pass.h, recovery.h, chunk_plan.h and journal.h.
// session_driver.cc: the answer. driver_open.cc: route and epochs. driver_pass.cc: steps on links, waiting, cancelling. driver_relay.cc: hops.
#pragma once

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "session/inbox.h"
#include "session/journal.h"
#include "session/pass.h"
#include "session/recovery.h"
#include "session/route.h"
#include "session/session_driver.h"

namespace meshnet {

// What a link's callback leaves in the inbox.
struct LinkAnswer {
  uint64_t serial = 0;  // of the pass or the opening it belongs to; an older one is late and ignored
  size_t stage = 0;
  uint64_t ticket = 0;
  Time sent{};
  std::variant<Reply<StepResult>, Reply<OpenReply>, Reply<ReleaseOutcome>> reply;
};

// How a stretch of an answer ended.
enum class Outcome {
  kDone,
  kAgain,      // not done, but what was in the way is dealt with: choose a start and go on
  kCancelled,
  kLength,
  kFailed,     // Run::failure says why
};

// A stage while an epoch is opened.
struct Opening {
  enum State { kWaiting, kAsked, kOpen } state = kWaiting;
  Time due{};
};

// The moves that their callers do in place, with the same call.
inline bool Resends(Move move) { return move == Move::kResendSame || move == Move::kWaitForCredit || move == Move::kWaitForCapacity; }

// One Answer or ForwardLogits.
struct Run {
  AnswerSink* sink = nullptr;
  AnswerReport report;
  std::optional<AnswerFailure> failure;
  bool generating = false;              // tokens were delivered
  bool route_seen = false;              // the route was looked at since the run began or last lost it

  bool cancelled = false;

  // Since the session last got further than ever in this run.
  PastLen furthest;
  TroubleCount troubles;
  uint32_t epochs = 0;
  uint32_t bug_epochs = 0;
  std::optional<Time> trouble_since;    // the first trouble since the tail last moved, in a replay too

  std::optional<PastLen> start_limit;   // a stage cannot go on beyond it
  bool replay = false;                  // what comes next was computed before and was lost
};

struct DrivenSession::Impl {
  Impl(Route& r, const Clock& c, DriverOptions o, std::string salt, HopObserver h, SessionKey name);

  // session_driver.cc
  Outcome AnswerLoop(Run& run, const AnswerRequest& request);
  PassPlan PlanAnswer(Run& run, const SamplingParams& sampling, uint32_t prompt_tokens);
  Outcome Deliver(Run& run, SampledToken token, uint32_t tokens_max);
  Outcome LogitsLoop(Run& run, PastLen base, HiddenState& logits);
  std::optional<AnswerFailure> CheckLogits(size_t token_count) const;
  std::vector<StageReach> Reach() const;
  bool StartsAtEveryPast(PastLen start) const;
  void MarkBoundaries(const PassPlan& plan, PastLen limit);
  Outcome Fail(Run& run, AnswerFailure::Kind kind, std::string message);
  void EndRun(Run& run);

  // driver_open.cc
  Outcome Ready(Run& run);
  Outcome SeeRoute(Run& run);
  Outcome OpenAll(Run& run);
  Duration AskOpens(std::vector<Opening>& openings);
  std::optional<Outcome> TakeOpenAnswer(Run& run, std::vector<Opening>& openings, LinkAnswer answer);
  void AwaitOpens(const std::vector<Opening>& openings);
  void TakeOpen(size_t stage, const OpenReply& reply);
  bool SameStages(const Route::View& other) const;
  void ReleaseQuietly();

  // driver_pass.cc
  Outcome RunPass(Run& run, Pass& pass);
  void SendAll(Pass& pass, Time now);
  void SendStep(const StepToSend& send);
  void TakeAnswer(Pass& pass, LinkAnswer answer);
  void EndPass(Pass& pass, bool drain);
  Action Judge(Run& run, size_t stage, const Trouble& trouble, Situation situation);
  Outcome Act(Run& run, const Action& action, size_t stage, const Trouble& trouble);
  bool Cancelled(Run& run);
  bool Pause(Run& run, Duration delay);
  std::string StageText(size_t stage) const;
  std::vector<const ShardDescription*> Shapes() const;
  void Progress(Run& run, PastLen& seen, PastLen reached);
  void UpdatePast();

  SessionKey key() const { return {id, Epoch(epoch.load(std::memory_order_relaxed))}; }
  // Whether a wait for stages to let go, until `limit` at the latest, is over.
  bool WaitOver(Time limit) const { return clock.Now() >= std::min(limit, hurry_limit.load(std::memory_order_relaxed)); }

  Route& route;
  const Clock& clock;
  const DriverOptions options;
  const std::string cache_salt;
  const HopObserver observer;
  const SessionId id;
  std::atomic<uint64_t> epoch;         // written by the driving thread, read by any
  std::atomic<uint32_t> past{0};       // likewise: length of the public journal
  std::atomic<bool> ended{false};      // likewise
  std::atomic<Time> hurry_limit{Time::max()};  // written by any thread

  Journal journal;
  std::shared_ptr<const Route::View> view;  // shared with the route and other sessions; null while it has to be looked at
  std::vector<ShardLink*> open_links;       // where this epoch was asked to be opened
  std::vector<StageBook> books;
  bool open = false;                        // on every stage, and sure of what each holds
  uint32_t context_tokens = 0;              // reserved on every stage
  std::optional<SamplingParams> tail_sampling;  // what the tail was last sent in a committed step of this epoch

  std::shared_ptr<Inbox<LinkAnswer>> inbox;  // shared with callbacks, which may come after the session is gone, like the next one
  struct Relay;
  std::shared_ptr<Relay> relay;
  uint32_t late = 0;    // steps that were not answered in time since the session last got further: each doubles what the next one gets
  uint64_t serial = 0;
};

// Carries rows on to the next stage on the thread that brought them, while the session's own thread waits for the pass: waking that thread for
// a hop that needs no decision would cost more than the rest of the hop. Everything else goes to the inbox.
struct DrivenSession::Impl::Relay {
  // While the session's thread waits, and only then, its pass may be moved on from other threads.
  class Opened {
   public:
    Opened(Impl& session, Pass& pass);
    ~Opened();

   private:
    Relay& relay_;
  };

  // Whether the answer was dealt with. Any thread; throws nothing.
  bool Take(LinkAnswer& answer);
  // What Take would have thrown, on the session's thread.
  void Rethrow();

  std::recursive_mutex mutex;  // guards the rest and, while open, the pass: a link may answer within the call that asks it
  Impl* session = nullptr;
  Pass* pass = nullptr;        // null: closed
  bool sending = false;
  std::exception_ptr failure;
};

}  // namespace meshnet
