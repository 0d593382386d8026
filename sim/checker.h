// What has to be true in every run. The first thing that is not ends the run; the rest is counted, to see what the runs have met.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"

namespace meshnet::sim {

class Checker {
 public:
  void Fail(std::string what) {
    if (failure_.empty()) failure_ = std::move(what);
  }
  bool failed() const { return !failure_.empty(); }
  const std::string& failure() const { return failure_; }

  // Something that should be met now and then, by name.
  void Mark(const std::string& name) { ++marks_[name]; }
  const std::map<std::string, uint64_t>& marks() const { return marks_; }

  // Whose a session is; another owner's prompt on it is a leak.
  void OwnsSession(const SessionId& session, const std::string& owner) {
    const auto [entry, is_new] = owners_.emplace(session, owner);
    if (!is_new && entry->second != owner) Fail("session " + IdPrefix(session) + " of " + entry->second + " was given to " + owner);
  }

  // The engine of a stage failed on the step at `start` of a session.
  void EngineFailed(const SessionId& session, uint8_t stage, PastLen start) { ++engine_failures_[session][{stage, start}]; }
  // On one and the same step so often that its driver may give up.
  bool EngineGaveUp(const SessionId& session) const {
    const auto failures = engine_failures_.find(session);
    return failures != engine_failures_.end() &&
           std::ranges::any_of(failures->second, [](const auto& step) { return step.second >= kEngineFailuresMax; });
  }
  void ForgetEngineFailures(const SessionId& session) { engine_failures_.erase(session); }

 private:
  static constexpr uint32_t kEngineFailuresMax = 4;  // docs/protocol.md, Errors

  std::string failure_;
  std::map<std::string, uint64_t> marks_;
  std::map<SessionId, std::string> owners_;
  std::map<SessionId, std::map<std::pair<uint8_t, PastLen>, uint32_t>> engine_failures_;  // by stage and start
};

}  // namespace meshnet::sim
