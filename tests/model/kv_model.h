// The hot KV machine a second time, written from docs/kv-contract.md and the design and not from src/kv, so that two authors must agree: whole
// token logs, linear scans, a copy of everything before a decision that may fail. Same calls, same observable text as HotKv; not a step faster.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kv/hot_kv.h"

namespace meshnet::kv {

class KvModel {
 public:
  enum class End { kReleased, kEvictedLru, kEvictedTtl, kSuperseded, kLost, kDrained };

  // What two messages share when they are the same step.
  struct Content {
    StepKind kind = StepKind::kPrefill;
    PastLen start;
    PrefixDigest digest;
    std::vector<Token> tokens;
    RowsWanted rows = RowsWanted::kAll;
    bool logits_wanted = false;
    std::optional<SamplingParams> sampling;
    std::string input;  // the frame's shape and bytes
    friend bool operator==(const Content&, const Content&) = default;
  };
  struct Queued {
    StepSeq seq;
    Content content;
    std::string print;  // the fingerprint's digits, for the text only
    uint64_t serial = 0;
    bool executing = false;
    std::optional<Time> deadline;
  };
  struct Kept {
    StepSeq seq;
    Content content;
    std::string print;
    std::shared_ptr<const StepResult> result;
  };
  struct Session {
    SessionKey key;
    SequenceId sequence{-1};
    uint32_t reserved = 0;
    std::string salt;
    std::vector<Token> log;
    StepSeq last;   // committed
    StepSeq acked;
    Time stamp;     // of the last commit, or the Open
    std::vector<Kept> kept;
    std::vector<Queued> queue;

    bool executing() const { return !queue.empty() && queue[0].executing; }
    StepSeq next() const { return StepSeq(last.value + queue.size() + 1); }
  };
  // Its session ended while a step executed, which the engine has not let go of.
  struct Closing {
    Session session;
    End end;
  };
  struct Tombstone {
    SessionId session;
    Epoch fence;
    End end;
    StepSeq last;
    Time since;
  };

  KvModel(const HotKvConfig& config, const SequenceProbe& probe) : config_(config), probe_(&probe) {}

  OpenDecision Open(const OpenRequest& request, Time now);
  StepDecision Admit(const Step& step, const std::optional<Refusal>& fields, Time now);
  std::optional<Execution> Start(const Ticket& ticket, Time now);
  Settled Settle(const Ticket& ticket, StepFate fate, StepResult result, Time now);
  std::vector<Dropped> Cancel(const SessionKey& key);
  Released Release(const SessionKey& key, Time now);
  Expired Expire(Time now);
  std::optional<Time> next_expiry() const;
  void ConfirmRemoved(SequenceId sequence);
  void BeginDrain();
  Expired FinishDrain(Time now);
  void Poison();
  std::vector<Dropped> TakeDropped();
  ShardStats Stats(Time now) const;
  std::span<const Token> TokenLog(const SessionKey& key) const;
  std::string Snapshot() const;

  // What the text is made of, for who walks through states. Live sessions by id, closing ones by sequence, tombstones the oldest first.
  const std::vector<Session>& live() const { return live_; }
  const std::vector<Closing>& closing() const { return closing_; }
  const std::vector<Tombstone>& tombstones() const { return tombstones_; }
  const std::vector<Dropped>& dropped() const { return dropped_; }
  ShardState state() const { return state_; }
  const Session* Find(const SessionKey& key) const;
  bool closing(SequenceId sequence) const;
  bool removing(SequenceId sequence) const;
  uint64_t reserved() const;
  // What the session holds once its queued steps are committed.
  static std::vector<Token> Projected(const Session& session);

 private:
  // What is lacking, in which case the object is in pieces.
  std::optional<Detail> TryOpen(const OpenRequest& request, Time now, OpenAccepted& accepted);
  std::optional<StepDecision> Repeated(const Session& session, const Step& step);
  std::optional<Refusal> CheckFields(const Session& session, const Step& step, const std::optional<Refusal>& fields);
  std::optional<Refusal> CheckPlace(const Session& session, const Step& step);
  Refusal Refuse(const SessionKey& key, Reason reason, Detail detail = Detail::kNone);
  std::vector<Dropped> RefuseAll(const std::vector<Ticket>& tickets, Reason reason, Detail detail = Detail::kNone);
  static std::vector<Ticket> TakeQueued(Session& session, size_t keep);
  std::vector<Ticket> EndSession(SessionKey key, End end, Time now, Effects& effects);
  void Remove(SequenceId sequence, Effects& effects);
  Session* Live(const SessionId& id);
  Session* Live(const SessionKey& key);
  const Session* Victim(const SessionId* asking) const;  // the one to go first; never the asking one
  bool idle(const Session& session) const { return session.queue.empty() && !closing(session.sequence); }
  bool used(SequenceId sequence) const;
  std::optional<SequenceId> LowestFree() const;
  Epoch Fence(const SessionId& id) const;
  OpenReply ReplyOf(const Session& session) const;
  Credit CreditOf(const Session& session) const;
  std::string TextOf(const Session& session) const;
  Duration remembered() const { return std::max<Duration>(2 * config_.ttl, std::chrono::minutes(10)); }

  HotKvConfig config_;
  const SequenceProbe* probe_;
  ShardState state_ = ShardState::kServing;
  std::vector<Session> live_;
  std::vector<Closing> closing_;
  std::vector<SequenceId> removing_;
  std::vector<Tombstone> tombstones_;
  std::vector<Dropped> dropped_;
  uint64_t next_serial_ = 1;
  ShardStats counts_;
  std::map<std::string, uint64_t> refusals_;
};

}  // namespace meshnet::kv
