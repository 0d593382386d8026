#include "cli/system_signals.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/check.h"

namespace meshnet::cli {
namespace {

sigset_t EndingSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (int signal_number : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, signal_number);
  return set;
}

}  // namespace

Signals::Signals() {
  sigset_t set = EndingSignals();
  // Blocked and waited for, they also reach a process that runs as PID 1, where a default action would be dropped.
  MESHNET_CHECK(pthread_sigmask(SIG_BLOCK, &set, nullptr) == 0);
  fd_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  MESHNET_CHECK(fd_ >= 0);
}

Signals::~Signals() { close(fd_); }

std::optional<int> Signals::Wait(Duration limit) {
  pollfd entry = {fd_, POLLIN, 0};
  int milliseconds = static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(limit).count());
  if (poll(&entry, 1, milliseconds) <= 0) return std::nullopt;
  signalfd_siginfo info;
  if (read(fd_, &info, sizeof info) != static_cast<ssize_t>(sizeof info)) return std::nullopt;
  return static_cast<int>(info.ssi_signo);
}

void IgnoreBrokenPipes() { signal(SIGPIPE, SIG_IGN); }

}  // namespace meshnet::cli
