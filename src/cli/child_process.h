// Starting a process of ours that cannot outlive us.
#pragma once

#include <string>
#include <vector>

#include <sys/types.h>

#include "base/status.h"

namespace meshnet::cli {

// Owns the descriptors, not the process: whoever starts it also waits for it.
struct ChildProcess {
  pid_t pid = -1;
  int pid_fd = -1;       // readable once it ended
  int lifeline_fd = -1;  // closing it ends the child
  int ready_fd = -1;     // what the child says once it serves; end of file when it ended or is done saying

  void CloseAll();
};

// Starts `program arguments… --lifeline-fd N --ready-fd M --parent-pid P` in a process group of its own (a Ctrl-C in the terminal is ours to
// handle), without our MESHNET_* variables (all it needs is in its arguments) and with no other descriptor of ours. stdout goes to stderr.
// The kernel kills the child when the *calling thread* ends, so that thread must live as long as the child should.
Result<ChildProcess> StartChild(const std::string& program, const std::vector<std::string>& arguments);

// For the child: asks the kernel for SIGKILL when its parent ends; false when the parent has ended already.
bool DieWithParent(pid_t parent);

// "exit code 5", "signal 9 (Killed)" of a wait status.
std::string DescribeEnd(int wait_status);

}  // namespace meshnet::cli
