// What one worker process says it did, held against the protocol's promises: a result is that of the very step that was sent, a step is committed
// once, a replay is the commit's own bytes, and nothing below the fence of a session, or meant for an earlier process, has an effect.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "checker.h"
#include "protocol/session_open.h"
#include "protocol/step.h"
#include "worker/answer_sink.h"

namespace meshnet::sim {

// The token log behind each digest that a driver named.
class Prefixes {
 public:
  void Begin(const SessionId& session, const std::string& cache_salt);
  // The digest after the step's tokens on top of the prefix that it names; nothing when that is unknown.
  std::optional<PrefixDigest> Extend(const Step& step);

 private:
  struct Log {
    std::string cache_salt;
    std::vector<Token> tokens;
  };
  const Log* Find(const Step& step);

  std::unordered_map<PrefixDigest, Log> logs_;
  std::map<SessionId, Log> newest_;  // of each session: a later step may go back into it
};

// A step as it was sent, and how it met the worker.
struct SentStep {
  SessionKey key;
  Incarnation incarnation;
  StepSeq seq;
  PastLen start, end;
  std::optional<PrefixDigest> digest;  // of [0, end), when it is known
  bool forged = false;                 // it names a prefix that nobody has
  bool below_fence = false;
  bool other_process = false;
};
SentStep NoteSent(const Step& step, Prefixes& prefixes);

class Audit {
 public:
  Audit(Checker& checker, std::string who, const Incarnation& incarnation) : checker_(checker), who_(std::move(who)), incarnation_(incarnation) {}

  // An Open was accepted.
  void OnOpen(const SessionKey& key, Time now);
  // A step reaches the core.
  void OnSubmit(SentStep& step, Time now) const;
  void OnAnswer(const SentStep& step, const StepAnswer& answer, Time now);
  void OnRelease(const SessionKey& key, ReleaseOutcome outcome, Time now);
  // A higher epoch of the session is known here, and has to be still.
  bool IsBelowFence(const SessionKey& key, Time now) const;

 private:
  struct Fence {
    Epoch epoch;
    Time seen{};
  };
  void OnResult(const SentStep& step, const RecordedResult& recorded, Time now);
  void RaiseFence(const SessionKey& key, Time now, const char* what);
  void Fail(const SessionKey& key, const std::string& what);

  Checker& checker_;
  const std::string who_;
  const Incarnation incarnation_;
  std::map<SessionId, Fence> fences_;
  std::map<std::pair<SessionKey, StepSeq>, std::shared_ptr<const StepResult>> commits_;  // shared with the core's own records
  std::map<SessionKey, StepSeq> last_;
};

}  // namespace meshnet::sim
