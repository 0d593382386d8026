// What is remembered of ended sessions: the fence, so that an older epoch stays refused, and the reason, so that the owner's next step hears
// it. Bounded: the oldest goes first. Forgetting one is safe, since only Open makes state: a zombie could open an empty session at most.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/clock.h"
#include "base/ids.h"
#include "protocol/refusal.h"

namespace meshnet::kv {

enum class SessionEnd { kReleased, kEvictedLru, kEvictedTtl, kSuperseded, kLost, kDrained };
const char* Name(SessionEnd end);
// What the owner is told in a CACHE_MISS.
Detail DetailOf(SessionEnd end);

struct Tombstone {
  Epoch fence;
  SessionEnd end = SessionEnd::kReleased;
  StepSeq last;  // committed; a session that is opened again at this epoch goes on from here, so that no step_seq is committed twice
  Time since;
};

class Tombstones {
 public:
  Tombstones(uint32_t count_max, Duration lifetime) : count_max_(count_max), lifetime_(lifetime) {}

  // Nothing when none is remembered.
  const Tombstone* Find(const SessionId& session) const;
  // Replaces an older one of the session.
  void Put(const SessionId& session, const Tombstone& tombstone);
  void Erase(const SessionId& session);
  void Expire(Time now);
  std::optional<Time> next_expiry() const;

  const std::map<SessionId, Tombstone>& all() const { return by_session_; }
  bool within_bounds() const { return by_session_.size() <= count_max_ && by_session_.size() == by_age_.size(); }

 private:
  uint32_t count_max_;
  Duration lifetime_;
  std::map<SessionId, Tombstone> by_session_;
  std::set<std::pair<Time, SessionId>> by_age_;
};

}  // namespace meshnet::kv
