#include "cli/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

extern char** environ;

namespace meshnet::cli {
namespace {

constexpr int kChildLifeline = 3;
constexpr int kChildReady = 4;
// Above the child's fixed numbers, so that dup2 never meets itself.
constexpr int kLeastParentFd = 16;

void CloseIfOpen(int& fd) {
  if (fd >= 0) close(fd);
  fd = -1;
}

// Both ends close-on-exec and numbered from kLeastParentFd.
bool MakePipe(int (&ends)[2]) {
  int low[2];
  if (pipe2(low, O_CLOEXEC) != 0) return false;
  for (int i = 0; i < 2; ++i) {
    ends[i] = fcntl(low[i], F_DUPFD_CLOEXEC, kLeastParentFd);
    close(low[i]);
  }
  return ends[0] >= 0 && ends[1] >= 0;
}

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> EnvironmentWithoutOurs() {
  std::vector<std::string> kept;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (std::strncmp(*entry, "MESHNET_", 8) != 0) kept.emplace_back(*entry);
  }
  return kept;
}

// RAII over the two C objects of posix_spawn.
struct SpawnPlan {
  SpawnPlan(int lifeline, int ready) {
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, lifeline, kChildLifeline);
    posix_spawn_file_actions_adddup2(&actions, ready, kChildReady);
    posix_spawn_file_actions_addclosefrom_np(&actions, kChildReady + 1);
    posix_spawnattr_init(&attributes);
    sigset_t none, defaults;
    sigemptyset(&none);
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGPIPE);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &defaults);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  }
  ~SpawnPlan() {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  }
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
};

}  // namespace

void ChildProcess::CloseAll() {
  CloseIfOpen(pid_fd);
  CloseIfOpen(lifeline_fd);
  CloseIfOpen(ready_fd);
}

Result<ChildProcess> StartChild(const std::string& program, const std::vector<std::string>& arguments) {
  int lifeline[2] = {-1, -1}, ready[2] = {-1, -1};
  ChildProcess child;
  int error = 0;
  if (!MakePipe(lifeline) || !MakePipe(ready)) {
    error = errno;
  } else {
    std::vector<std::string> words = {program == "/proc/self/exe" ? "meshnet" : program};
    words.insert(words.end(), arguments.begin(), arguments.end());
    for (const std::string& word : {std::string("--lifeline-fd"), std::to_string(kChildLifeline), std::string("--ready-fd"),
                                    std::to_string(kChildReady), std::string("--parent-pid"), std::to_string(getpid())}) {
      words.push_back(word);
    }
    std::vector<std::string> environment = EnvironmentWithoutOurs();
    SpawnPlan plan(lifeline[0], ready[1]);
    error = posix_spawn(&child.pid, program.c_str(), &plan.actions, &plan.attributes, Pointers(words).data(), Pointers(environment).data());
  }
  CloseIfOpen(lifeline[0]);
  CloseIfOpen(ready[1]);
  child.lifeline_fd = lifeline[1];
  child.ready_fd = ready[0];
  if (error == 0) {
    child.pid_fd = static_cast<int>(syscall(SYS_pidfd_open, child.pid, 0));  // glibc 2.36 declares it as C++
    if (child.pid_fd < 0) error = errno;
  }
  if (error == 0) return child;
  if (child.pid > 0) {
    kill(child.pid, SIGKILL);
    waitpid(child.pid, nullptr, 0);
  }
  child.CloseAll();
  return Failure("cannot start " + program + ": " + std::strerror(error));
}

bool DieWithParent(pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  return getppid() == parent;
}

std::string DescribeEnd(int wait_status) {
  if (WIFEXITED(wait_status)) return "exit code " + std::to_string(WEXITSTATUS(wait_status));
  int signal_number = WTERMSIG(wait_status);
  const char* name = strsignal(signal_number);
  return "signal " + std::to_string(signal_number) + " (" + (name == nullptr ? "unknown" : name) + ")";
}

}  // namespace meshnet::cli
