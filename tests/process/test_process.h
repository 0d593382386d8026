// Real programs under test: started, watched and ended.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

namespace meshnet::process {

// Polls until `claim` holds; false after `limit`, which is only waited for when something is broken.
bool Eventually(const std::function<bool()>& claim, std::chrono::milliseconds limit = std::chrono::seconds(60));

struct StartOptions {
  std::vector<std::string> wrapper;  // words in front of the command, of something that ends in running it
  std::map<std::string, std::string> environment;  // added to ours, whose MESHNET_* are left out
  std::vector<std::string> unset;
  std::string folder;     // working folder; empty: ours
  std::string input;      // all of stdin
  bool terminal = false;  // stdin, stdout and stderr are a terminal instead
  int closed_fd = -1;     // 1 or 2: a pipe whose reader is gone
};

// Not thread-safe. Ends the program (SIGKILL) when it goes.
class TestProcess {
 public:
  // `files` is a folder for what the program prints.
  TestProcess(const std::vector<std::string>& command, const StartOptions& options, const std::string& files);
  ~TestProcess();
  TestProcess(const TestProcess&) = delete;
  TestProcess& operator=(const TestProcess&) = delete;

  pid_t pid() const { return pid_; }
  // The exit code, or minus the signal that ended it; nothing when it still runs after `limit`.
  std::optional<int> Wait(std::chrono::milliseconds limit = std::chrono::seconds(60));
  bool running();
  void Signal(int number);

  // So far. With a terminal all is in out().
  std::string out();
  std::string err();
  // Types into the terminal.
  void Type(const std::string& bytes);

 private:
  void Collect();  // terminal output so far

  pid_t pid_ = -1;
  std::optional<int> ended_;
  std::string out_path_, err_path_;
  int terminal_ = -1;
  std::string terminal_output_;
};

// Runs to the end.
struct Finished {
  std::optional<int> code;
  std::string out, err;
  double seconds = 0;
};
Finished RunToEnd(const std::vector<std::string>& command, const StartOptions& options, const std::string& files);

// Children of a process, by their commands' arguments; only live ones.
std::vector<pid_t> ChildrenOf(pid_t parent);
// Running, stopped or sleeping; a zombie or nothing is not alive.
bool IsAlive(pid_t pid);

}  // namespace meshnet::process
