// The tables behind HotKv and what several of its operations share. Each operation has its own file: hot_kv_open.cc, hot_kv_admit.cc,
// hot_kv_settle.cc, hot_kv_end.cc; hot_kv_audit.cc looks at all of it.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kv/hot_kv.h"
#include "kv/sequence_table.h"
#include "kv/session_record.h"
#include "kv/tombstones.h"

namespace meshnet::kv {

// A session that ended while a step of it executes: the result will be discarded, the sequence removed.
struct ClosingSession {
  SessionRecord record;
  SessionEnd end;
};

struct HotKvCounts {
  std::array<uint64_t, static_cast<size_t>(Reason::kProtocolMismatch) + 1> refusals{};
  uint64_t evictions_ttl = 0;
  uint64_t evictions_lru = 0;
  uint64_t evictions_superseded = 0;
  uint64_t sessions_lost = 0;
  uint64_t replays = 0;
  uint64_t steps_committed = 0;
  uint64_t tokens_committed = 0;
};

struct HotKv::Impl {
  Impl(HotKvConfig c, const SequenceProbe& p);

  using Sessions = std::map<SessionId, SessionRecord>;

  // The live session of exactly this key; null when there is none.
  SessionRecord* Find(const SessionKey& key);
  const SessionRecord* Find(const SessionKey& key) const { return const_cast<Impl*>(this)->Find(key); }
  // The highest epoch seen for a session; 0 when none is remembered.
  Epoch FenceOf(const SessionId& session) const;
  // Fills in everything a refusal says about the session as it is now, and counts it.
  Refusal Refuse(const SessionKey& key, Refusal refusal);
  Refusal Refuse(const SessionKey& key, Reason reason, Detail detail, std::string message);

  Credit CreditOf(const SessionRecord& session) const {
    return {StepSeq(session.acked.value + config.window_steps), config.pending_tokens_max};
  }
  bool due(Time stamp, Time now) const { return now - stamp >= config.ttl; }

  // Moves a session in or out of the idle order, as its queue and sequence say.
  void UpdateIdle(SessionRecord& session);
  // Takes the queued steps from `index` on away, the last first. The committed part of the session does not move.
  std::vector<Ticket> DropQueue(SessionRecord& session, size_t index);
  // Refuses dropped steps alike; `refusal` without what Refuse fills in.
  std::vector<Dropped> RefuseAll(const std::vector<Ticket>& tickets, const Refusal& refusal);
  void AddDropped(std::vector<Dropped> dropped);

  // Ends a live session: CLOSING when a step of it executes, gone otherwise, with a tombstone unless it is superseded. Returns the tickets
  // of its queued steps, which the caller refuses.
  std::vector<Ticket> EndSession(Sessions::iterator session, SessionEnd end, Time now, Effects& effects);

  // Open, in the order of checks.
  std::optional<Refusal> CheckOpen(const OpenRequest& request, const SessionRecord* live);
  // Idle sessions whose end makes room for `need` tokens and one sequence once `superseded` is gone; nothing when even all are not enough.
  std::optional<std::vector<SessionId>> ChooseVictims(uint32_t need, const SessionRecord* superseded, Detail& lacking) const;
  Refusal RefuseForRoom(const SessionKey& key, uint32_t need, Detail lacking, Time now);
  SessionRecord& CreateSession(const OpenRequest& request, uint32_t reserved, std::optional<SequenceId> taken_over, Time now);
  OpenReply ReplyTo(const SessionRecord& session) const;

  // Admit, in the order of checks.
  std::optional<Refusal> CheckOwner(const Step& step);
  std::optional<StepDecision> CheckRepeat(const SessionRecord& session, const Step& step, const Fingerprint& fingerprint);
  std::optional<Refusal> CheckFields(const SessionRecord& session, const Step& step, const FieldsCheck& check);
  std::optional<Refusal> CheckPosition(const SessionRecord& session, const Step& step);
  std::optional<Refusal> CheckTruncation(const SessionRecord& session, const Step& step);
  std::optional<Refusal> CheckRoom(const SessionRecord& session, const Step& step, Time now);

  // Settle, by fate.
  Settled SettleClosing(const Ticket& ticket);
  Settled SettleDone(SessionRecord& session, std::shared_ptr<StepResult> result, Time now);
  Settled SettleRolledBack(SessionRecord& session, const std::string& cause);
  Settled SettleLost(const SessionKey& key, const Refusal& why, Time now);

  HotKvConfig config;
  const SequenceProbe& probe;
  ShardState state = ShardState::kServing;
  Sessions sessions;                             // live: at most one epoch each
  std::map<SequenceId, ClosingSession> closing;  // at most one a sequence
  SequenceTable sequences;
  IdleOrder idle;
  Tombstones tombstones;
  std::vector<Dropped> dropped;                  // until TakeDropped; at most one for each step that was queued
  uint64_t next_serial = 1;
  HotKvCounts counts;
};

}  // namespace meshnet::kv
