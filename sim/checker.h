// What has to be true in every run. The first thing that is not ends the run; the rest is counted, to see what the runs have met.
#pragma once

#include <cstdint>
#include <map>
#include <string>
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

 private:
  std::string failure_;
  std::map<std::string, uint64_t> marks_;
  std::map<SessionId, std::string> owners_;
};

}  // namespace meshnet::sim
