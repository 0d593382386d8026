#include "cli/system_signals.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>

#include "base/check.h"

namespace meshnet::cli {
namespace {

sigset_t EndingSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (int signal_number : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, signal_number);
  return set;
}

std::atomic<int> seconds_left{0};
std::atomic<int> seconds_unheard{0};

void OnSecond(int) {
  sigset_t pending;
  sigpending(&pending);
  const bool unheard = sigismember(&pending, SIGINT) == 1 || sigismember(&pending, SIGTERM) == 1 || sigismember(&pending, SIGHUP) == 1;
  seconds_unheard = unheard ? seconds_unheard + 1 : 0;
  if (--seconds_left > 0 && seconds_unheard < 2) return;
  constexpr char kWhy[] = "meshnet: it does not end by itself: ending at once\n";
  (void)!write(STDERR_FILENO, kWhy, sizeof kWhy - 1);
  _exit(1);
}

}  // namespace

void EndAtTheLatest(std::chrono::seconds limit) {
  seconds_left = static_cast<int>(limit.count()) + 1;
  struct sigaction action = {};
  action.sa_handler = OnSecond;
  action.sa_flags = SA_RESTART;
  sigaction(SIGALRM, &action, nullptr);
  const itimerval every_second = {{1, 0}, {1, 0}};
  setitimer(ITIMER_REAL, &every_second, nullptr);
}

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
