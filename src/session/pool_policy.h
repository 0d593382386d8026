// The pool's decisions: whose turn it is, and which session serves a prompt. Pure: no thread, clock or link.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "protocol/describe.h"
#include "session/route.h"

namespace meshnet {

// Those who wait for a turn, first come first served.
class TurnLine {
 public:
  using Ticket = uint64_t;

  // Behind everybody.
  Ticket Join();
  // Before everybody, whoever waits.
  Ticket JoinFirst();
  // The first in line goes as soon as a turn is free.
  bool MayGo(Ticket ticket, uint32_t turns_free) const { return turns_free > 0 && !line_.empty() && line_.front() == ticket; }
  // It went, or gave up.
  void Leave(Ticket ticket);
  uint32_t waiting() const { return static_cast<uint32_t>(line_.size()); }

 private:
  std::deque<Ticket> line_;
  Ticket next_ = 1;
};

// How many sessions a route holds at full context.
uint32_t SessionsThatFit(const RouteLimits& limits);

struct IdleSession {
  uint64_t handle = 0;
  std::string owner;
  std::span<const Token> journal;   // committed on every stage
  uint32_t prompt_tokens = 0;       // of its last answer
  Time since{};
};

struct SessionWish {
  std::string owner;
  std::span<const Token> prompt;
  TruncationClass truncation_class = TruncationClass::kFull;  // the strictest of the route
  Duration ttl{0};                  // a session idle that long is gone on some stage
  Time now{};
  uint32_t live = 0;                // sessions, idle ones included
  uint32_t live_max = 1;
};

struct SessionChoice {
  std::optional<uint64_t> reuse;    // nothing: a new session
  std::vector<uint64_t> release;    // idle sessions that go first
};

// Reuses the owner's session with the longest usable prefix when that is the same conversation (its whole last prompt is kept), answers the
// whole prompt, or loses no more than it saves. Otherwise a new session, in place of the least recently used idle one when there is no room.
SessionChoice ChooseSession(std::span<const IdleSession> idle, const SessionWish& wish);

}  // namespace meshnet
