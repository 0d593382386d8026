// A file that appears under its name only when it is complete and on the disk. Until then it has no name, or a temporary one that is
// removed again; a killed process leaves nothing where the file system can do so (O_TMPFILE).
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace meshnet::gguf {

// Who may read a new file: everybody as far as the umask allows, or its owner alone.
enum class Readers { kAsUmask, kOwner };

class OutputFile {
 public:
  // Refused (kFailure) when the folder has less than `needed_bytes` free, or the process may not write a file of `file_bytes`.
  static Result<OutputFile> Create(const std::string& path, uint64_t needed_bytes, uint64_t file_bytes, Readers readers);
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();

  Status Write(uint64_t offset, const char* data, uint64_t bytes);
  // Copies with the kernel where it can.
  Status CopyFrom(int source, uint64_t source_offset, uint64_t offset, uint64_t bytes);
  // Sets the length; what was never written stays a hole.
  Status Resize(uint64_t bytes);

  // Syncs file and folder and gives the file its name. With `replace` an existing file is replaced atomically, else its presence is
  // an error (kFailure).
  enum class Existing { kError, kReplace };
  Status Publish(Existing existing);

 private:
  OutputFile(std::string path, std::string temporary, int descriptor);
  Status Broken(const char* what) const;
  Status Link(const std::string& name);
  Status SyncFolder() const;

  std::string path_;
  std::string temporary_;        // empty: the file has no name yet
  int descriptor_ = -1;
  bool kernel_copy_ = true;
};

}  // namespace meshnet::gguf
