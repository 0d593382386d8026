// The hot KV state machine of one shard (docs/kv-contract.md): who owns which sequence, how far it got, what may run next.
// Pure: no clock, thread, engine or I/O; time, identities and engine outcomes are arguments. Not thread-safe: one thread owns it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "protocol/describe.h"
#include "protocol/refusal.h"
#include "protocol/session_open.h"
#include "protocol/step.h"

namespace meshnet::kv {

struct HotKvConfig {
  uint32_t sessions_max = 8;            // == sequence ids [0, sessions_max)
  uint32_t context_tokens = 4096;       // largest reservation of one session
  uint32_t budget_tokens = 32768;       // sum of reservations never passes it
  Duration ttl = std::chrono::seconds(600);
  uint32_t window_steps = 4;            // unacknowledged steps (queued, or committed with a kept reply) of one session
  uint32_t pending_tokens_max = 2048;   // tokens of queued steps of one session
  uint64_t logits_bytes_max = 64u << 20;  // full logits in unacknowledged replies of one session, those of queued steps included; one step
                                          // alone may have more
  uint32_t chunk_rows_max = 512;        // tokens of one step
  uint32_t vocabulary_size = 0;         // token ids are [0, vocabulary_size)
  uint32_t tombstones_max = 4096;
  TruncationClass truncation_class = TruncationClass::kFull;
  uint32_t window_tokens = 0;           // kWindow: the sliding window
  Incarnation incarnation;
};

// Where the engine says a sequence's cells begin, which decides how far a kWindow session can be truncated.
class SequenceProbe {
 public:
  virtual ~SequenceProbe() = default;
  // First position whose cells are intact; 0 when nothing was recycled or nothing is held.
  virtual PastLen IntactFrom(SequenceId sequence) const = 0;
};

// Work for the engine that a decision caused. The caller performs all removals before its next call, then confirms each (ConfirmRemoved).
// A sequence may belong to a new session already; it is used for it only once the removal is confirmed.
struct Effects {
  std::vector<SequenceId> removals;
};

struct OpenAccepted {
  OpenReply reply;
  Effects effects;
};
using OpenDecision = std::variant<OpenAccepted, Refusal>;

// A queued step. Valid until it is settled, cancelled or dropped with its session.
struct Ticket {
  SessionKey key;
  StepSeq seq;
  uint64_t serial = 0;  // distinguishes two lives of one (key, seq)
  friend bool operator==(const Ticket&, const Ticket&) = default;
};

// A queued step that ended without a result, and what its caller is told.
using Dropped = std::pair<Ticket, Refusal>;

struct StepAdmitted { Ticket ticket; };
struct StepReplayed { std::shared_ptr<const StepResult> result; };  // the recorded result; the caller marks its copy `replayed`
// The same step is queued or running already: one result will answer both.
struct StepJoined { Ticket ticket; };
using StepDecision = std::variant<StepAdmitted, StepReplayed, StepJoined, Refusal>;

// What the engine has to do for a started step.
struct Execution {
  SequenceId sequence;
  PastLen start;
  bool truncate = false;  // first cut the sequence to `start`; a cut that is not proven is settled as kLost
};

enum class StepFate {
  kDone,
  kRolledBack,  // the engine holds exactly [0, start) again
  kLost,        // it does not, or the output was not finite: the session goes
};

struct Settled {
  std::shared_ptr<const StepResult> result;  // committed; null otherwise
  std::optional<Refusal> refusal;            // why there is no result
  std::vector<Dropped> dropped;              // later queued steps of the session, refused with kStepGap or the reason of its end
  Effects effects;
};

struct Released {
  ReleaseOutcome outcome = ReleaseOutcome::kNotFound;
  std::vector<Dropped> dropped;              // its queued steps, refused with kCancelled
  Effects effects;
};

struct Expired {
  Effects effects;
};

// The refusal of a step's fields, if any. Called at most once, within Admit.
using FieldsCheck = std::function<std::optional<Refusal>()>;

class HotKv {
 public:
  // `probe` outlives the object; it is asked only for sequences in use, between engine calls.
  HotKv(HotKvConfig config, const SequenceProbe& probe);
  ~HotKv();
  HotKv(const HotKv&) = delete;
  HotKv& operator=(const HotKv&) = delete;

  // Opens, queries (same key and parameters) or supersedes (higher epoch). A refused Open changes nothing; nobody is evicted for it.
  // Identity (root, range) has been checked by the caller, which owns it. `dropped` of a superseded session come through TakeDropped.
  OpenDecision Open(const OpenRequest& request, Time now);

  // VALIDATE and ADMIT. What only the caller can judge (the shape and finiteness of `step.input`, whether the engine takes the sampling) is
  // asked for as `fields` at its place in the order of checks: never for a step that is refused before, or is a resend. Null: nothing.
  StepDecision Admit(const Step& step, const FieldsCheck& fields, Time now);

  // Queued -> executing. Nothing when the ticket is no longer queued, or its deadline has passed (then it is among TakeDropped).
  // Steps of a session are started in their order, each after the one before was settled, and only once every removal is confirmed and
  // every step of an older session on the same sequence is settled; anything else aborts.
  std::optional<Execution> Start(const Ticket& ticket, Time now);

  // The outcome of a started step. On kDone `result` carries output, sampled tokens and timings, and nothing else is looked at; HotKv fills
  // seq, past length, digest, credit and reservation, and keeps it until acknowledged: nobody may change it any more. It comes allocated, so
  // that a decode step allocates nothing here. `cause` is for the refusal's message.
  Settled Settle(const Ticket& ticket, StepFate fate, std::shared_ptr<StepResult> result, std::string cause, Time now);

  // Takes queued steps of the session out of the queue, the last first, refused with kCancelled; executing ones go on.
  std::vector<Dropped> Cancel(const SessionKey& key);

  // Acts on exactly this epoch; anything else is harmless.
  Released Release(const SessionKey& key, Time now);

  // Removes sessions whose TTL is due (never busy ones), and tombstones past their time.
  Expired Expire(Time now);
  // When Expire has something to do next; nothing when no session is idle and no tombstone is kept.
  std::optional<Time> next_expiry() const;

  // The engine reported the sequence empty: its id may be given again.
  void ConfirmRemoved(SequenceId sequence);

  // From here on Open is refused; live sessions go on.
  void BeginDrain();
  // Ends all idle sessions with tombstones kDrained; busy ones are closed when they settle.
  Expired FinishDrain(Time now);
  // An invariant broke outside: everything is refused with kPoisoned.
  void Poison();

  // Steps refused without their caller being in a call: superseded, released, drained, past deadline. Moves them out.
  std::vector<Dropped> TakeDropped();

  ShardStats Stats(Time now) const;
  // The token log [0, past_len) of a live session; empty when there is none. For checks.
  std::span<const Token> TokenLog(const SessionKey& key) const;
  // The whole observable state as text, one fact a line, in a total order: byte-equal before and after each refusal.
  std::string Snapshot() const;
  // Aborts when one of the invariants of section 6 does not hold. O(n).
  void CheckInvariants() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace meshnet::kv
