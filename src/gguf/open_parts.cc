#include "gguf/open_parts.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace meshnet::gguf {

OpenParts::~OpenParts() {
  for (int descriptor : open_) close(descriptor);
}

Status OpenParts::Open(const std::vector<Part>& parts) {
  for (const Part& part : parts) {
    const int descriptor = open(part.path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return Failure(part.path + ": cannot be opened: " + std::strerror(errno));
    open_.push_back(descriptor);
  }
  return OkStatus();
}

}  // namespace meshnet::gguf
