// The answer to each trouble of a call (docs/protocol.md): from what came back, and what the session knows, to what is done next.
// Pure: no clock, no link. Bounds on how often are here; the bound on how long is the driver's recovery limit.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <variant>

#include "base/clock.h"
#include "base/ids.h"
#include "protocol/refusal.h"
#include "protocol/step.h"
#include "session/session_driver.h"

namespace meshnet {

// A stage answered something that its own promise forbids: another past length, digest, shape or count than the step asked for.
struct Violation {
  std::string message;
};

// Why a call gave no usable answer.
using Trouble = std::variant<Refusal, TransportFault, Violation>;

// "cache-miss (evicted-lru): message", "no answer: message".
std::string TroubleText(const Trouble& trouble);

// How often each stage was in each kind of trouble (reason and detail) since the session last got further. No answer, and an engine that failed,
// say something about one call, so each step has a count of its own.
class TroubleCount {
 public:
  // Counts this one too. `start`: of the step; nothing for an Open.
  uint32_t Add(size_t stage, const Trouble& trouble, std::optional<PastLen> start);
  void Clear() { counts_.clear(); }

 private:
  static int Kind(const Trouble& trouble);

  std::map<std::tuple<size_t, int, std::optional<PastLen>>, uint32_t> counts_;
};

enum class Move {
  kResendSame,       // the same call again after `delay`: it cannot be done twice
  kWaitForCredit,    // the same step once earlier replies are in, at the latest after `delay`
  kWaitForCapacity,  // the same Open again after `delay`
  kRePrefillFrom,    // in this epoch, all stages together, from `from` or the next lower position that works
  kNewEpoch,         // after `delay` open epoch + 1 on every stage and re-prefill the whole journal
  kRepairRoute,      // report the stage lost, wait for the route, then as kNewEpoch
  kEndAtLength,      // the context is full: the answer ends
  kFail,             // the answer fails with `failure`; the session can answer again
  kStop,             // another route owns the session: it ends here
};
const char* Name(Move move);

struct Action {
  Move move = Move::kFail;
  Duration delay{0};
  PastLen from{};
  AnswerFailure::Kind failure = AnswerFailure::Kind::kInternal;
  bool against_bug = false;  // kNewEpoch: counts as one of Situation::bug_epochs
};

enum class Asked { kOpen, kStep };

// What the session knows when a call ends in trouble.
struct Situation {
  Asked asked = Asked::kStep;
  uint32_t count = 1;                     // of this trouble at this stage since the session last got further, this one included
  uint32_t epochs = 0;                    // opened since the session last got further
  uint32_t bug_epochs = 0;                // of them, against what should not happen at all
  bool generating = false;                // tokens were delivered: the answer is worth waiting for
  PastLen start;                          // of the step
  PastLen agreed;                         // what all stages hold of the journal
  std::optional<PastLen> shard_agreed;    // what the refusing stage itself says it holds of the journal
  uint32_t jitter = 0;                    // 0..1023, differs between sessions so that two do not evict each other in step
};

Action Decide(const Trouble& trouble, const Situation& situation);

}  // namespace meshnet
