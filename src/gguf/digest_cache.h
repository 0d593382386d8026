// Digests of file regions, remembered between runs. A miss, a broken entry or a folder that cannot be written only costs time.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "base/ids.h"

namespace meshnet::gguf {

// What must not have changed for a digest to hold. The change time cannot be set back by a program, the modification time can.
struct FileStamp {
  std::string real_path;
  uint64_t device = 0;
  uint64_t inode = 0;
  uint64_t bytes = 0;
  int64_t modified_ns = 0;
  int64_t changed_ns = 0;

  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};

// Nothing when the file cannot be looked at.
std::optional<FileStamp> StampFile(const std::string& path);

using RegionDigests = std::map<std::pair<uint64_t, uint64_t>, Sha256Digest>;  // {offset, bytes} -> digest

RegionDigests LoadDigests(const FileStamp& stamp);
void StoreDigests(const FileStamp& stamp, const RegionDigests& digests);

// Whether a change right now could leave the stamp as it is, because the clock of the file system has not moved on since.
bool IsTooYoung(const FileStamp& stamp);

}  // namespace meshnet::gguf
