// A folder for the sockets and the turn lock of one embedded cluster: only we can enter it, and it goes when we go.
#pragma once

#include <string>

#include "base/status.h"

namespace meshnet::cli {

// Under TMPDIR or /tmp, mode 0700. Folders that a killed predecessor of the same user left behind are removed on the way.
class PrivateFolder {
 public:
  static Result<PrivateFolder> Create();
  PrivateFolder(PrivateFolder&& other) noexcept;
  PrivateFolder& operator=(PrivateFolder&&) = delete;
  ~PrivateFolder();

  const std::string& path() const { return path_; }
  // After somebody removed it; its lock is not taken again.
  void MakeAgain() const;

 private:
  PrivateFolder(std::string path, int lock_fd) : path_(std::move(path)), lock_fd_(lock_fd) {}

  std::string path_;  // empty when moved from
  int lock_fd_;       // held as long as we live: how a successor knows that the folder is in use
};

}  // namespace meshnet::cli
