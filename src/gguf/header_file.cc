#include "gguf/header_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

namespace meshnet::gguf {

static_assert(std::endian::native == std::endian::little, "GGUF values are read in place");

namespace {
constexpr uint64_t kBufferBytes = 1 << 18;
constexpr size_t kPrintableBytesMax = 80;
}  // namespace

std::string Printable(std::string_view text) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string out;
  for (unsigned char c : text.substr(0, kPrintableBytesMax)) {
    if (c < 0x20 || c == 0x7f) {
      out += {'\\', 'x', digits[c >> 4], digits[c & 15]};
    } else {
      out.push_back(static_cast<char>(c));
    }
  }
  if (text.size() > kPrintableBytesMax) out += "…";
  return out;
}

Result<HeaderFile> HeaderFile::Open(const std::string& path) {
  // Non-blocking, so that a FIFO in place of a model is an error and not a wait.
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return BadModel(path + ": cannot be opened: " + std::strerror(errno));
  struct stat info{};
  if (fstat(descriptor, &info) != 0 || !S_ISREG(info.st_mode)) {
    close(descriptor);
    return BadModel(path + ": is not a regular file");
  }
  return HeaderFile(path, descriptor, static_cast<uint64_t>(info.st_size));
}

HeaderFile::HeaderFile(std::string path, int descriptor, uint64_t bytes)
    : path_(std::move(path)), descriptor_(descriptor), bytes_(bytes) {
  buffer_.resize(std::min(kBufferBytes, std::max<uint64_t>(bytes, 1)));
}

HeaderFile::HeaderFile(HeaderFile&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)), bytes_(other.bytes_), offset_(other.offset_),
      buffer_(std::move(other.buffer_)), buffer_begin_(other.buffer_begin_), buffer_bytes_(other.buffer_bytes_) {}

HeaderFile::~HeaderFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

Status HeaderFile::Bad(uint64_t offset, std::string_view message) const {
  return BadModel(path_ + ": at offset " + std::to_string(offset) + ": " + std::string(message));
}

Status HeaderFile::Fetch(char* target, uint64_t count, std::string_view what) {
  if (count > bytes_left()) {
    return Bad(offset_, "the file ends (after " + std::to_string(bytes_) + " bytes) inside " + std::string(what) + ": it is truncated");
  }
  while (count > 0) {
    if (offset_ < buffer_begin_ || offset_ >= buffer_begin_ + buffer_bytes_) {
      const ssize_t got = pread(descriptor_, buffer_.data(), buffer_.size(), static_cast<off_t>(offset_));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return Bad(offset_, std::string("cannot be read: ") + std::strerror(errno));
      if (got == 0) return Bad(offset_, "the file became shorter while it was read");
      buffer_begin_ = offset_;
      buffer_bytes_ = static_cast<uint64_t>(got);
    }
    const uint64_t begin = offset_ - buffer_begin_;
    const uint64_t part = std::min(count, buffer_bytes_ - begin);
    std::memcpy(target, buffer_.data() + begin, part);
    target += part;
    offset_ += part;
    count -= part;
  }
  return OkStatus();
}

Status HeaderFile::Read(uint32_t* value, std::string_view what) { return Fetch(reinterpret_cast<char*>(value), sizeof(*value), what); }
Status HeaderFile::Read(uint64_t* value, std::string_view what) { return Fetch(reinterpret_cast<char*>(value), sizeof(*value), what); }

Status HeaderFile::Read(std::string* value, uint64_t bytes_max, std::string_view what) {
  const uint64_t begin = offset_;
  uint64_t length = 0;
  if (Status status = Read(&length, what); !status.ok()) return status;
  if (length > bytes_left()) {
    return Bad(begin, std::string(what) + " claims " + std::to_string(length) + " bytes, but only " + std::to_string(bytes_left()) +
                          " are left in the file");
  }
  if (length > bytes_max) {
    return Bad(begin, std::string(what) + " has " + std::to_string(length) + " bytes; at most " + std::to_string(bytes_max) +
                          " are accepted");
  }
  value->clear();
  return ReadRaw(value, length, what);
}

Status HeaderFile::ReadRaw(std::string* value, uint64_t count, std::string_view what) {
  if (count > bytes_left()) {
    return Bad(offset_, "the file ends (after " + std::to_string(bytes_) + " bytes) inside " + std::string(what) + ": it is truncated");
  }
  const size_t old_size = value->size();
  value->resize(old_size + count);
  return Fetch(value->data() + old_size, count, what);
}

}  // namespace meshnet::gguf
