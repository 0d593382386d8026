#include "worker/host_turn_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace meshnet {
namespace {

// Two locks on two bytes: whoever wants the turn passes the door first and keeps it closed until it has the turn. Without the door the
// worker that has just finished would lock again before those it woke are running, and starve them.
constexpr int kDoor = 0;
constexpr int kTurn = 1;

struct flock Range(int byte, short type) {
  struct flock range {};
  range.l_type = type;
  range.l_whence = SEEK_SET;
  range.l_start = byte;
  range.l_len = 1;
  return range;
}

}  // namespace

Result<std::unique_ptr<HostTurn>> HostTurn::Open(const std::string& path) {
  int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return BadConfiguration("the file of the host's engine turn, " + path + ": " + std::strerror(errno));
  return std::unique_ptr<HostTurn>(new HostTurn(fd, path));
}

HostTurn::~HostTurn() { close(fd_); }

// Locks of the open file description, not of the process: closing another descriptor of the file does not drop them.
bool HostTurn::Lock(int byte, bool wait) {
  struct flock range = Range(byte, F_WRLCK);
  while (fcntl(fd_, wait ? F_OFD_SETLKW : F_OFD_SETLK, &range) != 0) {
    if (errno == EINTR) continue;
    if (!wait && (errno == EAGAIN || errno == EACCES)) return false;
    // A file system without locks costs speed, not correctness.
    if (!complained_) std::fprintf(stderr, "meshnet: no turns on this host: %s: %s\n", path_.c_str(), std::strerror(errno));
    complained_ = true;
    return true;
  }
  return true;
}

void HostTurn::Unlock(int byte) {
  struct flock range = Range(byte, F_UNLCK);
  fcntl(fd_, F_OFD_SETLK, &range);
}

HostTurn::Got HostTurn::Acquire() {
  Got got = Got::kAtOnce;
  for (int byte : {kDoor, kTurn}) {
    if (Lock(byte, /*wait=*/false)) continue;
    got = Got::kAfterWaiting;
    Lock(byte, /*wait=*/true);
  }
  Unlock(kDoor);
  return got;
}

void HostTurn::Release() { Unlock(kTurn); }

}  // namespace meshnet
