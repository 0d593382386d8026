// One engine call at a time on this host: workers of one machine that all use its cores take turns by the lock of a file (docs/engine.md). The
// kernel frees it when its holder dies.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"

namespace meshnet {

// One per worker, used by its engine thread only. Never held while waiting for work.
class HostTurn {
 public:
  // Makes the file if needed. kBadConfiguration names it.
  static Result<std::unique_ptr<HostTurn>> Open(const std::string& path);
  ~HostTurn();
  HostTurn(const HostTurn&) = delete;
  HostTurn& operator=(const HostTurn&) = delete;

  enum class Got { kAtOnce, kAfterWaiting };
  // Blocks while another worker has the turn. Workers that wait are served before the one that has just had it.
  Got Acquire();
  void Release();

 private:
  HostTurn(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  bool Lock(int byte, bool wait);
  void Unlock(int byte);

  const int fd_;
  const std::string path_;
  bool complained_ = false;
};

}  // namespace meshnet
