#include "gguf/output_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

namespace meshnet::gguf {
namespace {

constexpr uint64_t kCopyBytes = 4 << 20;

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string TemporaryName(const std::string& path) {
  static constexpr char digits[] = "0123456789abcdef";
  std::random_device device;
  std::string suffix;
  for (int i = 0; i < 16; ++i) suffix.push_back(digits[device() & 15]);
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "" : path.substr(0, slash + 1);
  // Names are short: the longest file name of common file systems has 255 bytes.
  return folder + ".meshnet-" + suffix + ".tmp";
}

Status CheckRoom(const std::string& path, const std::string& folder, uint64_t needed_bytes, uint64_t file_bytes) {
  struct rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && file_bytes > limit.rlim_cur) {
    return Failure(path + ": would have " + std::to_string(file_bytes) + " bytes, but this process may write files of at most " +
                   std::to_string(limit.rlim_cur) + " (ulimit -f)");
  }
  struct statvfs info{};
  if (statvfs(folder.c_str(), &info) != 0) return Failure(path + ": its folder cannot be used: " + std::strerror(errno));
  const uint64_t free_bytes = static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
  if (needed_bytes > free_bytes) {
    return Failure(path + ": needs " + std::to_string(needed_bytes) + " bytes, but only " + std::to_string(free_bytes) + " are free on its disk");
  }
  return OkStatus();
}

}  // namespace

Result<OutputFile> OutputFile::Create(const std::string& path, uint64_t needed_bytes, uint64_t file_bytes, Readers readers) {
  const mode_t mode = readers == Readers::kOwner ? 0600 : 0644;
  const std::string folder = FolderOf(path);
  if (Status status = CheckRoom(path, folder, needed_bytes, file_bytes); !status.ok()) return status;
  // A file without a name gets one through /proc.
  if (access("/proc/self/fd", F_OK) == 0) {
    const int unnamed = open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, mode);
    if (unnamed >= 0) return OutputFile(path, "", unnamed);
  }
  const std::string temporary = TemporaryName(path);
  const int named = open(temporary.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, mode);
  if (named < 0) return Failure(path + ": cannot be created: " + std::strerror(errno));
  return OutputFile(path, temporary, named);
}

OutputFile::OutputFile(std::string path, std::string temporary, int descriptor)
    : path_(std::move(path)), temporary_(std::move(temporary)), descriptor_(descriptor) {}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)), temporary_(std::exchange(other.temporary_, "")), descriptor_(std::exchange(other.descriptor_, -1)),
      kernel_copy_(other.kernel_copy_) {}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) close(descriptor_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

Status OutputFile::Broken(const char* what) const {
  return Failure(path_ + ": " + what + ": " + std::strerror(errno) + "; nothing of it was kept");
}

Status OutputFile::Write(uint64_t offset, const char* data, uint64_t bytes) {
  while (bytes > 0) {
    const ssize_t done = pwrite(descriptor_, data, bytes, static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return Broken("cannot be written");
    data += done;
    offset += static_cast<uint64_t>(done);
    bytes -= static_cast<uint64_t>(done);
  }
  return OkStatus();
}

Status OutputFile::CopyFrom(int source, uint64_t source_offset, uint64_t offset, uint64_t bytes) {
  while (bytes > 0 && kernel_copy_) {
    auto from = static_cast<off_t>(source_offset);
    auto to = static_cast<off_t>(offset);
    const ssize_t done = copy_file_range(source, &from, descriptor_, &to, bytes, 0);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0 && (errno == ENOSPC || errno == EDQUOT || errno == EFBIG || errno == EIO)) return Broken("cannot be written");
    if (done <= 0) {
      kernel_copy_ = false;  // another file system, or one that cannot do it
      break;
    }
    source_offset += static_cast<uint64_t>(done);
    offset += static_cast<uint64_t>(done);
    bytes -= static_cast<uint64_t>(done);
  }
  std::vector<char> buffer(std::min(bytes, kCopyBytes));
  while (bytes > 0) {
    const ssize_t got = pread(source, buffer.data(), std::min<uint64_t>(bytes, buffer.size()), static_cast<off_t>(source_offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Broken("the model cannot be read");
    if (got == 0) return Failure(path_ + ": the model became shorter while it was copied; nothing was kept");
    if (Status status = Write(offset, buffer.data(), static_cast<uint64_t>(got)); !status.ok()) return status;
    source_offset += static_cast<uint64_t>(got);
    offset += static_cast<uint64_t>(got);
    bytes -= static_cast<uint64_t>(got);
  }
  return OkStatus();
}

Status OutputFile::Resize(uint64_t bytes) {
  if (ftruncate(descriptor_, static_cast<off_t>(bytes)) != 0) return Broken("cannot be given its length");
  return OkStatus();
}

Status OutputFile::Link(const std::string& name) {
  if (!temporary_.empty()) {
    if (renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, name.c_str(), RENAME_NOREPLACE) == 0) {
      temporary_.clear();
      return OkStatus();
    }
    if (errno == EINVAL && link(temporary_.c_str(), name.c_str()) == 0) return OkStatus();
  } else {
    const std::string self = "/proc/self/fd/" + std::to_string(descriptor_);
    if (linkat(AT_FDCWD, self.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0) return OkStatus();
  }
  if (errno == EEXIST) return Failure(path_ + ": exists already; name another file, or replace it with --force");
  return Broken("cannot be given its name");
}

Status OutputFile::SyncFolder() const {
  const int folder = open(FolderOf(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return OkStatus();  // a folder that may be written but not listed
  const bool synced = fsync(folder) == 0 || errno == EINVAL || errno == ENOTSUP;
  close(folder);
  return synced ? OkStatus() : Failure(path_ + ": its folder cannot be synced: " + std::strerror(errno));
}

Status OutputFile::Publish(Existing existing) {
  if (fsync(descriptor_) != 0) return Broken("cannot be synced");
  if (existing == Existing::kError) {
    if (Status status = Link(path_); !status.ok()) return status;
  } else {
    if (temporary_.empty()) {
      const std::string temporary = TemporaryName(path_);
      if (Status status = Link(temporary); !status.ok()) return status;
      temporary_ = temporary;
    }
    if (rename(temporary_.c_str(), path_.c_str()) != 0) return Broken("cannot be given its name");
    temporary_.clear();
  }
  return SyncFolder();
}

}  // namespace meshnet::gguf
