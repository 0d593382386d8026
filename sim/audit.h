// What one worker process says it did, held against the protocol's promises: a step is committed once, a replay is the commit's own bytes, and
// nothing below the fence of a session has an effect.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/ids.h"
#include "checker.h"
#include "protocol/step.h"
#include "worker/answer_sink.h"

namespace meshnet::sim {

class Audit {
 public:
  Audit(Checker& checker, std::string who) : checker_(checker), who_(std::move(who)) {}

  // An Open was accepted.
  void OnOpen(const SessionKey& key, Time now);
  // A step was answered with a result.
  void OnResult(const SessionKey& key, const RecordedResult& recorded, Time now);

 private:
  struct Fence {
    Epoch epoch;
    Time seen{};
  };
  void CheckFence(const SessionKey& key, Time now, const char* what);
  void Fail(const SessionKey& key, const std::string& what);

  Checker& checker_;
  const std::string who_;
  std::map<SessionId, Fence> fences_;
  std::map<std::pair<SessionKey, StepSeq>, std::shared_ptr<const StepResult>> commits_;  // shared with the core's own records
  std::map<SessionKey, StepSeq> last_;
};

}  // namespace meshnet::sim
