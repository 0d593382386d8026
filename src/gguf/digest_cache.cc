#include "gguf/digest_cache.h"

#include <sys/stat.h>
#include <time.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <sstream>

#include "base/cache_folder.h"
#include "base/sha256.h"
#include "gguf/output_file.h"

namespace meshnet::gguf {
namespace {

constexpr char kFolder[] = "digests";
constexpr char kTitle[] = "meshnet digests 1";
constexpr int64_t kNanoseconds = 1000000000;
constexpr int64_t kFineTick = 20 * 1000 * 1000;   // twice the coarsest kernel tick
constexpr int64_t kCoarseTick = 2 * kNanoseconds;  // file systems that keep whole seconds

std::string EntryPath(const std::string& folder, const FileStamp& stamp) {
  return folder + "/" + Sha256().Update(stamp.real_path).Digest().Hex().substr(0, 32);
}

std::string StampLine(const FileStamp& stamp) {
  std::ostringstream line;
  line << stamp.device << ' ' << stamp.inode << ' ' << stamp.bytes << ' ' << stamp.modified_ns << ' ' << stamp.changed_ns << ' '
       << stamp.real_path.size() << ' ' << stamp.real_path << '\n';
  return line.str();
}

void NoteOnce(const std::string& why) {
  static std::once_flag once;
  std::call_once(once, [&] {
    std::fprintf(stderr, "note: digests are not remembered (%s), so models are hashed again at each start\n", why.c_str());
  });
}

}  // namespace

std::optional<FileStamp> StampFile(const std::string& path) {
  struct stat info{};
  if (stat(path.c_str(), &info) != 0) return std::nullopt;
  char* real = realpath(path.c_str(), nullptr);
  if (real == nullptr) return std::nullopt;
  FileStamp stamp;
  stamp.real_path = real;
  std::free(real);
  stamp.device = info.st_dev;
  stamp.inode = info.st_ino;
  stamp.bytes = static_cast<uint64_t>(info.st_size);
  stamp.modified_ns = info.st_mtim.tv_sec * kNanoseconds + info.st_mtim.tv_nsec;
  stamp.changed_ns = info.st_ctim.tv_sec * kNanoseconds + info.st_ctim.tv_nsec;
  return stamp;
}

bool IsTooYoung(const FileStamp& stamp) {
  struct timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  const int64_t tick = stamp.changed_ns % kNanoseconds == 0 ? kCoarseTick : kFineTick;
  const int64_t now_ns = now.tv_sec * kNanoseconds + now.tv_nsec;
  return now_ns < stamp.changed_ns + tick || now_ns < stamp.modified_ns + tick;
}

RegionDigests LoadDigests(const FileStamp& stamp) {
  RegionDigests digests;
  const std::string folder = CachePath(kFolder);
  if (folder.empty()) return digests;
  std::ifstream in(EntryPath(folder, stamp), std::ios::binary);
  std::stringstream content;
  content << in.rdbuf();
  std::string text = content.str();
  // The last line is the digest of all before it: a torn or bent entry is no entry.
  if (text.size() < 65 || text.back() != '\n') return digests;
  const std::string sum = text.substr(text.size() - 65, 64);
  text.resize(text.size() - 65);
  if (Sha256().Update(text).Digest().Hex() != sum) return digests;
  const std::string head = std::string(kTitle) + '\n' + StampLine(stamp);
  if (!text.starts_with(head)) return digests;
  std::istringstream lines(text.substr(head.size()));
  uint64_t offset = 0, bytes = 0;
  std::string hex;
  while (lines >> offset >> bytes >> hex) {
    if (const auto digest = Sha256Digest::FromHex(hex); digest.has_value()) digests[{offset, bytes}] = *digest;
  }
  return digests;
}

void StoreDigests(const FileStamp& stamp, const RegionDigests& digests) {
  if (CachePath(kFolder).empty()) return;
  const Result<std::string> made = CacheFolder(kFolder);
  if (!made.ok()) return NoteOnce(made.status().message());
  const std::string& folder = *made;
  (void)!chmod(folder.c_str(), 0700);  // entries name the user's files; an open folder of ours is closed, somebody else's is as its owner wants it
  std::ostringstream out;
  out << kTitle << '\n' << StampLine(stamp);
  for (const auto& [region, digest] : digests) out << region.first << ' ' << region.second << ' ' << digest.Hex() << '\n';
  std::string text = out.str();
  text += Sha256().Update(text).Digest().Hex() + '\n';
  Result<OutputFile> file = OutputFile::Create(EntryPath(folder, stamp), text.size(), text.size(), Readers::kOwner);
  Status status = file.ok() ? file->Write(0, text.data(), text.size()) : file.status();
  if (status.ok()) status = file->Publish(OutputFile::Existing::kReplace);
  if (!status.ok()) NoteOnce(status.message());
}

}  // namespace meshnet::gguf
