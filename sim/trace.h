// What happened in a run, in order: a hash over all of it, so that two runs of a seed can be compared, and the newest part of it as text.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "protocol/refusal.h"

namespace meshnet::sim {

enum class What : uint8_t {
  // Messages, by where they arrive.
  kOpen, kStep, kCancel, kRelease, kDescribe, kDrain, kStreamEnds,
  kOpened, kResult, kRefused, kReleased, kDescribed, kDraining, kFault,
  // What the network does.
  kLost, kReplyLost, kRepeated, kStuck, kCut, kZombie, kForged,
  // Processes.
  kRun, kStarts, kServes, kCrashes, kPauses, kClockJumps, kDrainEnds, kEngineFault, kGatewayDies, kHealed,
  // Clients.
  kAsks, kToken, kAnswered, kFailed, kTurnRefused, kTakesOver, kLeaves,
};

// Where something happens or comes from.
struct Place {
  char kind = '-';  // g: gateway, w: worker, c: client
  uint8_t number = 0;
};

// For a number of an event.
inline uint64_t Micros(Duration duration) { return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(duration).count()); }

class Trace {
 public:
  struct Event {
    What what = What::kOpen;
    Place from{};
    Place to{};
    SessionKey key{};    // zero: none
    uint64_t a = 0, b = 0, c = 0;
  };

  void Note(Time now, const Event& event);
  uint64_t hash() const { return hash_; }
  uint64_t count() const { return count_; }
  // The newest events, one a line, oldest first.
  std::string Tail() const;
  // Prints each event as it comes.
  void PrintAll() { prints_ = true; }

 private:
  struct Line {
    Time when{};
    Event event;
  };
  static std::string Text(const Line& line);

  static constexpr size_t kTail = 120;
  std::array<Line, kTail> lines_;
  uint64_t count_ = 0;
  uint64_t hash_ = 0x6d6573682d73696d;
  bool prints_ = false;
};

}  // namespace meshnet::sim
