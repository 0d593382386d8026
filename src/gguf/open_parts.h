// The files of a model, open for reading as long as this lives.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "gguf/model_file.h"

namespace meshnet::gguf {

class OpenParts {
 public:
  OpenParts() = default;
  ~OpenParts();
  OpenParts(const OpenParts&) = delete;
  OpenParts& operator=(const OpenParts&) = delete;

  // Once. After a failure, which names the file, what was opened stays so.
  Status Open(const std::vector<Part>& parts);
  // The descriptor of a part, owned by this.
  int operator[](uint32_t part) const { return open_[part]; }

 private:
  std::vector<int> open_;
};

}  // namespace meshnet::gguf
