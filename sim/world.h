// What all parts of a run share.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "audit.h"
#include "checker.h"
#include "event_loop.h"
#include "random.h"
#include "swarm.h"
#include "trace.h"

namespace meshnet::sim {

struct World {
  explicit World(uint64_t seed) : random(seed), swarm(DrawSwarm(random)) {}

  Random random;
  Swarm swarm;
  EventLoop loop;
  Trace trace;
  Checker checker;
  Prefixes prefixes;
  bool healed = false;                        // nothing strikes any more
  Time healed_at{};
  std::vector<SessionId> sessions;            // the newest that were named
  std::map<SessionId, uint32_t> takeovers;    // how often another driver took it over
  // What a driver that collides with another has to know of the session: the newest epoch that was asked for, and the salt of its digests.
  std::map<SessionId, Epoch> epochs;
  std::map<SessionId, std::string> salts;
  std::set<SessionId> collided;
  std::vector<Token> last_talk;               // of any client; another owner may ask the very same
  uint32_t clients = 0;
  uint64_t tokens_told = 0;
  bool canary = false;                        // engines feed a wrong token now and then

  void Note(const Trace::Event& event) { trace.Note(loop.now(), event); }
};

}  // namespace meshnet::sim
