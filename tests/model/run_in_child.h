// Work in a process of its own, because a broken claim aborts: what it says, and whether it ended well.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <utility>

namespace meshnet {

struct ChildRun {
  std::string output;  // all of it, stderr included
  bool well = false;   // ended with 0
};

// Writes to the parent; ends the process when nobody reads.
using Say = std::function<void(const std::string&)>;

// `work` runs in a fork and returns the exit code.
inline ChildRun RunInChild(const std::function<int(const Say&)>& work) {
  int ends[2];
  if (pipe(ends) != 0) return {"no pipe"};
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    dup2(ends[1], STDERR_FILENO);
    _exit(work([](const std::string& text) {
      for (size_t done = 0; done < text.size();) {
        const ssize_t count = write(STDERR_FILENO, text.data() + done, text.size() - done);
        if (count <= 0) _exit(2);
        done += static_cast<size_t>(count);
      }
    }));
  }
  close(ends[1]);
  ChildRun run;
  char buffer[4096];
  for (ssize_t count; (count = read(ends[0], buffer, sizeof buffer)) > 0;) run.output.append(buffer, static_cast<size_t>(count));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  run.well = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  return run;
}

// What went wrong in a run that did not end well.
inline std::string ProblemOf(const ChildRun& run) { return run.output.empty() ? "it died without a word" : run.output; }

}  // namespace meshnet
