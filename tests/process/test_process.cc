#include "process/test_process.h"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utmp.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

extern char** environ;

namespace meshnet::process {
namespace {

using Clock = std::chrono::steady_clock;

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<std::string> Environment(const StartOptions& options) {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    std::string text = *entry;
    size_t equals = text.find('=');
    if (text.rfind("MESHNET_", 0) != 0) variables[text.substr(0, equals)] = text.substr(equals + 1);
  }
  for (const auto& [name, value] : options.environment) variables[name] = value;
  for (const std::string& name : options.unset) variables.erase(name);
  std::vector<std::string> list;
  for (const auto& [name, value] : variables) list.push_back(name + "=" + value);
  return list;
}

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

int BrokenPipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return -1;
  close(ends[0]);
  return ends[1];
}

}  // namespace

bool Eventually(const std::function<bool()>& claim, std::chrono::milliseconds limit) {
  Clock::time_point deadline = Clock::now() + limit;
  while (!claim()) {
    if (Clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

TestProcess::TestProcess(const std::vector<std::string>& command, const StartOptions& options, const std::string& files) {
  static std::atomic<int> number{0};
  std::string stem = files + "/process-" + std::to_string(number++);
  out_path_ = stem + ".out";
  err_path_ = stem + ".err";
  std::ofstream(stem + ".in", std::ios::binary) << options.input;
  std::vector<std::string> words = command, environment = Environment(options);
  std::vector<char*> argv = Pointers(words), envp = Pointers(environment);
  int in = open((stem + ".in").c_str(), O_RDONLY | O_CLOEXEC);
  int out = options.closed_fd == 1 ? BrokenPipe() : open(out_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  int err = options.closed_fd == 2 ? BrokenPipe() : open(err_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  int slave = -1;
  if (options.terminal) {
    winsize size = {24, 80, 0, 0};
    if (openpty(&terminal_, &slave, nullptr, nullptr, &size) == 0) {
      fcntl(terminal_, F_SETFD, FD_CLOEXEC);
      fcntl(terminal_, F_SETFL, O_NONBLOCK);
    }
  }
  pid_ = fork();
  if (pid_ == 0) {
    signal(SIGPIPE, SIG_DFL);  // a shell's children start like this, whatever the test itself ignores
    setsid();
    if (slave >= 0) {
      login_tty(slave);
    } else {
      dup2(in, 0);
      dup2(out, 1);
      dup2(err, 2);
    }
    if (!options.folder.empty() && chdir(options.folder.c_str()) != 0) _exit(126);
    execve(argv[0], argv.data(), envp.data());
    _exit(127);
  }
  for (int fd : {in, out, err, slave}) {
    if (fd >= 0) close(fd);
  }
}

TestProcess::~TestProcess() {
  if (pid_ > 0 && running()) {
    kill(pid_, SIGKILL);
    (void)Wait();
  }
  if (terminal_ >= 0) close(terminal_);
}

bool TestProcess::running() {
  if (ended_) return false;
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) != pid_) return true;
  ended_ = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  return false;
}

std::optional<int> TestProcess::Wait(std::chrono::milliseconds limit) {
  Eventually(
      [this] {
        Collect();  // a full terminal would hold the program up
        return !running();
      },
      limit);
  return ended_;
}

void TestProcess::Signal(int number) {
  if (pid_ > 0) kill(pid_, number);  // -1 would be every process of the machine
}

void TestProcess::Collect() {
  char buffer[4096];
  ssize_t count;
  while (terminal_ >= 0 && (count = read(terminal_, buffer, sizeof buffer)) > 0) terminal_output_.append(buffer, static_cast<size_t>(count));
}

std::string TestProcess::out() {
  if (terminal_ < 0) return ReadAll(out_path_);
  Collect();
  return terminal_output_;
}

std::string TestProcess::err() { return ReadAll(err_path_); }

void TestProcess::Type(const std::string& bytes) { (void)!write(terminal_, bytes.data(), bytes.size()); }

Finished RunToEnd(const std::vector<std::string>& command, const StartOptions& options, const std::string& files) {
  Clock::time_point start = Clock::now();
  TestProcess process(command, options, files);
  Finished finished;
  finished.code = process.Wait();
  finished.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  finished.out = process.out();
  finished.err = process.err();
  return finished;
}

bool IsAlive(pid_t pid) {
  std::string stat = ReadAll("/proc/" + std::to_string(pid) + "/stat");
  size_t name_end = stat.rfind(')');
  return name_end != std::string::npos && name_end + 2 < stat.size() && stat[name_end + 2] != 'Z' && stat[name_end + 2] != 'X';
}

std::vector<pid_t> ChildrenOf(pid_t parent) {
  std::vector<pid_t> children;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    pid_t pid = static_cast<pid_t>(std::atoi(entry.path().filename().c_str()));
    if (pid <= 0 || !IsAlive(pid)) continue;
    std::string stat = ReadAll(entry.path() / "stat");
    std::istringstream rest(stat.substr(stat.rfind(')') + 2));
    char state;
    pid_t its_parent = 0;
    if (rest >> state >> its_parent && its_parent == parent) children.push_back(pid);
  }
  return children;
}

}  // namespace meshnet::process
