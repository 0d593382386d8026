// Reads a GGUF header front to back through a small buffer. Nothing is mapped: a file that shrinks under us is an error, not a signal.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace meshnet::gguf {

class HeaderFile {
 public:
  // kBadModel when the path cannot be opened or is no regular file.
  static Result<HeaderFile> Open(const std::string& path);
  HeaderFile(HeaderFile&& other) noexcept;
  HeaderFile& operator=(HeaderFile&&) = delete;
  ~HeaderFile();

  const std::string& path() const { return path_; }
  uint64_t bytes() const { return bytes_; }
  uint64_t offset() const { return offset_; }
  uint64_t bytes_left() const { return bytes_ - offset_; }

  // Each reads the next value; `what` names it in the error when the file ends first.
  Status Read(uint32_t* value, std::string_view what);
  Status Read(uint64_t* value, std::string_view what);
  // A length-prefixed string of at most `bytes_max`.
  Status Read(std::string* value, uint64_t bytes_max, std::string_view what);
  // Appends exactly `count` bytes.
  Status ReadRaw(std::string* value, uint64_t count, std::string_view what);

  // kBadModel: "FILE: at offset N: MESSAGE".
  Status Bad(uint64_t offset, std::string_view message) const;

 private:
  HeaderFile(std::string path, int descriptor, uint64_t bytes);
  Status Fetch(char* target, uint64_t count, std::string_view what);

  std::string path_;
  int descriptor_ = -1;
  uint64_t bytes_ = 0;
  uint64_t offset_ = 0;
  std::vector<char> buffer_;
  uint64_t buffer_begin_ = 0;  // file offset of buffer_[0]
  uint64_t buffer_bytes_ = 0;
};

// Makes hostile text fit for a message: short, and without control characters.
std::string Printable(std::string_view text);

}  // namespace meshnet::gguf
