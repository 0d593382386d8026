#include "gguf/region_hash.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>

#include "base/sha256.h"
#include "gguf/digest_cache.h"
#include "gguf/open_parts.h"

namespace meshnet::gguf {
namespace {

constexpr size_t kReadBytes = 1 << 20;

Sha256Digest AllOnes() {
  Sha256Digest digest;
  digest.bytes.fill(0xff);
  return digest;
}

// Hashes the wanted regions; both threads take the next one until none is left.
class Hasher {
 public:
  Hasher(const std::vector<Part>& parts, const std::vector<Region>& regions, const std::vector<size_t>& wanted,
         std::vector<Sha256Digest>* digests)
      : parts_(parts), regions_(regions), wanted_(wanted), digests_(*digests) {
    for (size_t index : wanted_) total_ += regions_[index].bytes;
  }

  Status Run(const std::function<void(uint64_t, uint64_t)>& progress) {
    if (Status status = descriptors_.Open(parts_); !status.ok()) return status;
    std::thread second([this] { Work(nullptr); });
    Work(progress ? &progress : nullptr);
    second.join();
    if (progress) progress(done_, total_);
    return error_;
  }

 private:
  void Work(const std::function<void(uint64_t, uint64_t)>* progress) {
    std::vector<char> buffer(kReadBytes);
    for (;;) {
      const size_t next = next_.fetch_add(1);
      if (next >= wanted_.size() || failed_) return;
      HashOne(wanted_[next], &buffer, progress);
    }
  }

  void HashOne(size_t index, std::vector<char>* buffer, const std::function<void(uint64_t, uint64_t)>* progress) {
    const Region& region = regions_[index];
    Sha256 sha;
    uint64_t offset = region.offset;
    const uint64_t end = region.offset + region.bytes;
    bool zeros = true;
    while (offset < end && !failed_) {
      if (region.zeros) offset = SkipHole(region, offset, end);
      const size_t want = std::min<uint64_t>(buffer->size(), end - offset);
      if (want == 0) break;
      const ssize_t got = pread(descriptors_[region.part], buffer->data(), want, static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return Fail(region, got == 0 ? "it became shorter" : std::strerror(errno));
      const std::span<const char> bytes(buffer->data(), static_cast<size_t>(got));
      if (region.zeros) {
        zeros = zeros && std::all_of(bytes.begin(), bytes.end(), [](char c) { return c == 0; });
      } else {
        sha.Update(std::as_bytes(bytes));
      }
      offset += static_cast<uint64_t>(got);
      done_ += static_cast<uint64_t>(got);
      if (progress != nullptr) (*progress)(std::min(done_.load(), total_), total_);
    }
    digests_[index] = !region.zeros ? sha.Digest() : zeros ? Sha256Digest() : AllOnes();
  }

  // A hole of the file holds zeros by definition; not every file system tells.
  uint64_t SkipHole(const Region& region, uint64_t offset, uint64_t end) const {
    const off_t data = lseek(descriptors_[region.part], static_cast<off_t>(offset), SEEK_DATA);
    if (data < 0) return errno == ENXIO ? end : offset;
    return std::min(end, std::max(offset, static_cast<uint64_t>(data)));
  }

  void Fail(const Region& region, const std::string& why) {
    const std::lock_guard<std::mutex> lock(mutex_);
    failed_ = true;
    error_ = Failure(parts_[region.part].path + ": cannot be read at offset " + std::to_string(region.offset) + ": " + why);
  }

  const std::vector<Part>& parts_;
  const std::vector<Region>& regions_;
  const std::vector<size_t>& wanted_;
  std::vector<Sha256Digest>& digests_;  // each element is written by one thread
  OpenParts descriptors_;
  std::atomic<size_t> next_{0};
  std::atomic<uint64_t> done_{0};
  std::atomic<bool> failed_{false};
  uint64_t total_ = 0;
  std::mutex mutex_;
  Status error_;                 // guarded by mutex_ until the threads are joined
};

}  // namespace

Result<std::vector<Sha256Digest>> HashRegions(const std::vector<Part>& parts, const std::vector<Region>& regions,
                                              const std::function<void(uint64_t, uint64_t)>& progress) {
  std::vector<std::optional<FileStamp>> stamps;
  std::vector<RegionDigests> known;
  bool young = false;
  for (const Part& part : parts) {
    stamps.push_back(StampFile(part.path));
    known.push_back(stamps.back().has_value() ? LoadDigests(*stamps.back()) : RegionDigests());
    young = young || (stamps.back().has_value() && IsTooYoung(*stamps.back()));
  }
  std::vector<Sha256Digest> digests(regions.size());
  std::vector<size_t> wanted;
  for (size_t i = 0; i < regions.size(); ++i) {
    const auto found = known[regions[i].part].find({regions[i].offset, regions[i].bytes});
    if (found != known[regions[i].part].end()) {
      digests[i] = found->second;
    } else {
      wanted.push_back(i);
    }
  }
  if (wanted.empty()) return digests;
  // From here on a change must move the file's times, or it would never be noticed: let the clock of a just written file move on first.
  if (young) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  std::vector<bool> steady;
  for (const std::optional<FileStamp>& stamp : stamps) steady.push_back(stamp.has_value() && !IsTooYoung(*stamp));
  Hasher hasher(parts, regions, wanted, &digests);
  if (Status status = hasher.Run(progress); !status.ok()) return status;
  for (size_t i : wanted) known[regions[i].part][{regions[i].offset, regions[i].bytes}] = digests[i];
  for (size_t part = 0; part < parts.size(); ++part) {
    if (!stamps[part].has_value()) continue;
    const std::optional<FileStamp> after = StampFile(parts[part].path);
    if (after != stamps[part]) return Failure(parts[part].path + ": changed while it was hashed");
    if (steady[part]) StoreDigests(*stamps[part], known[part]);
  }
  return digests;
}

}  // namespace meshnet::gguf
