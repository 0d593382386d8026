#include "cli/private_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

namespace meshnet::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPrefix = "meshnet-";
constexpr const char* kLockName = "owner.lock";

// A folder whose lock is free has lost its owner. One whose lock file is not there yet is being made.
void RemoveLeftovers(const std::string& base) {
  std::error_code error;
  for (fs::directory_iterator entry(base, error), end; !error && entry != end; entry.increment(error)) {
    std::string name = entry->path().filename().string();
    if (name.rfind(kPrefix, 0) != 0) continue;
    struct stat info;
    if (lstat(entry->path().c_str(), &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != geteuid()) continue;
    int lock = open((entry->path() / kLockName).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (lock < 0) continue;
    if (flock(lock, LOCK_EX | LOCK_NB) == 0) {
      std::error_code ignored;
      fs::remove_all(entry->path(), ignored);
    }
    close(lock);
  }
}

}  // namespace

Result<PrivateFolder> PrivateFolder::Create() {
  const char* configured = std::getenv("TMPDIR");
  std::string base = configured != nullptr && configured[0] == '/' ? configured : "/tmp";
  RemoveLeftovers(base);
  // Between making the folder and locking it, another starting process may take it for a leftover; then another name is tried.
  std::string trouble;
  for (int attempt = 0; attempt < 3; ++attempt) {
    std::string path = base + "/" + kPrefix + "XXXXXX";
    if (mkdtemp(path.data()) == nullptr) {
      return Failure("cannot make a private folder in " + base + ": " + std::strerror(errno) + "; set TMPDIR to a folder that can be written");
    }
    std::string lock_path = path + "/" + kLockName;
    int lock = open(lock_path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (lock >= 0 && flock(lock, LOCK_EX | LOCK_NB) == 0 && access(lock_path.c_str(), F_OK) == 0) return PrivateFolder(path, lock);
    trouble = std::strerror(errno);
    if (lock >= 0) close(lock);
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  return Failure("cannot lock a private folder in " + base + ": " + trouble);
}

PrivateFolder::PrivateFolder(PrivateFolder&& other) noexcept
    : path_(std::exchange(other.path_, std::string())), lock_fd_(std::exchange(other.lock_fd_, -1)) {}

void PrivateFolder::MakeAgain() const { (void)mkdir(path_.c_str(), 0700); }

PrivateFolder::~PrivateFolder() {
  if (path_.empty()) return;
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  close(lock_fd_);
}

}  // namespace meshnet::cli
