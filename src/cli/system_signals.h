// SIGINT, SIGTERM and SIGHUP as values, so that ending is ordinary code.
#pragma once

#include <optional>

#include "base/clock.h"

namespace meshnet::cli {

// Create it in main's thread before any other thread starts: the signals stay blocked in all of them. One per process.
class Signals {
 public:
  Signals();
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  // The next pending signal; waits at most `limit` (0: not at all). Thread-safe.
  std::optional<int> Wait(Duration limit);
  // Readable while a signal is pending.
  int fd() const { return fd_; }

 private:
  int fd_ = -1;
};

// For what is left to do once no answer runs any more: ending workers takes ten seconds at most.
inline constexpr std::chrono::seconds kStopLimit{60};

// From now on the process ends itself with exit code 1 after `limit`, and two seconds after a signal that nobody takes from Signals: a library
// that waits for ever must not keep a process that was told to end. The workers it started go with it. Call from any thread, also again.
void EndAtTheLatest(std::chrono::seconds limit);

// A reader that goes away is an error of a write, not the end of the process.
void IgnoreBrokenPipes();

}  // namespace meshnet::cli
