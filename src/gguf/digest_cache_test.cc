// Remembered digests: found again, never believed when something changed, and nobody else's to read.
#include "gguf/digest_cache.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/sha256.h"
#include "gguf/output_file.h"
#include "tiny/test_folder.h"

namespace meshnet::gguf {
namespace {

using tiny::TestFolder;

class DigestCacheTest : public testing::Test {
 protected:
  void SetUp() override {
    setenv("XDG_CACHE_HOME", cache().c_str(), 1);
    TestFolder::Write(model_, "weights");
    stamp_ = StampFile(model_).value();
  }

  std::string cache() const { return folder_.File("cache"); }
  std::string digests() const { return cache() + "/meshnet/digests"; }
  // The only one there is.
  std::string entry() const { return std::filesystem::directory_iterator(digests())->path().string(); }
  static mode_t ModeOf(const std::string& path) {
    struct stat info{};
    EXPECT_EQ(stat(path.c_str(), &info), 0) << path;
    return info.st_mode & 0777;
  }

  TestFolder folder_;
  std::string model_ = folder_.File("model.gguf");
  FileStamp stamp_;
  RegionDigests some_ = {{{0, 4}, Sha256().Update("weig").Digest()}, {{4, 3}, Sha256().Update("hts").Digest()}};
};

TEST_F(DigestCacheTest, FindsWhatWasStoredForThisVeryFile) {
  StoreDigests(stamp_, some_);
  EXPECT_EQ(LoadDigests(stamp_), some_);
  for (uint64_t FileStamp::*number : {&FileStamp::device, &FileStamp::inode, &FileStamp::bytes}) {
    FileStamp other = stamp_;
    ++(other.*number);
    EXPECT_TRUE(LoadDigests(other).empty());
  }
  for (int64_t FileStamp::*number : {&FileStamp::modified_ns, &FileStamp::changed_ns}) {
    FileStamp other = stamp_;
    ++(other.*number);
    EXPECT_TRUE(LoadDigests(other).empty());
  }
}

TEST_F(DigestCacheTest, IsReadableByItsOwnerOnly) {
  const mode_t before = umask(0);
  StoreDigests(stamp_, some_);
  umask(before);
  EXPECT_EQ(ModeOf(cache() + "/meshnet"), mode_t{0700});
  EXPECT_EQ(ModeOf(digests()), mode_t{0700});
  EXPECT_EQ(ModeOf(entry()), mode_t{0600});
}

TEST_F(DigestCacheTest, ClosesAFolderThatWasOpen) {
  std::filesystem::create_directories(digests());
  ASSERT_EQ(chmod(digests().c_str(), 0755), 0);
  StoreDigests(stamp_, some_);
  EXPECT_EQ(ModeOf(digests()), mode_t{0700});
}

TEST_F(DigestCacheTest, BelievesNoBentOrTornEntry) {
  StoreDigests(stamp_, some_);
  const std::string whole = TestFolder::Read(entry());
  for (size_t at = 0; at < whole.size(); at += 7) {
    std::string bent = whole;
    bent[at] = static_cast<char>(bent[at] ^ 1);
    TestFolder::Write(entry(), bent);
    EXPECT_TRUE(LoadDigests(stamp_).empty()) << "byte " << at;
  }
  for (size_t bytes : {size_t{0}, size_t{10}, whole.size() / 2, whole.size() - 1}) {
    TestFolder::Write(entry(), whole.substr(0, bytes));
    EXPECT_TRUE(LoadDigests(stamp_).empty()) << bytes << " bytes";
  }
}

TEST_F(DigestCacheTest, AFolderThatCannotBeOnlyCostsTime) {
  TestFolder::Write(cache(), "a file where the folder should be");
  StoreDigests(stamp_, some_);
  EXPECT_TRUE(LoadDigests(stamp_).empty());
}

TEST(OutputFileTest, ReadersAreTheOwnerOrWhomTheUmaskAllows) {
  const TestFolder folder;
  const mode_t before = umask(0027);
  for (auto [readers, mode] : {std::pair(Readers::kOwner, mode_t{0600}), std::pair(Readers::kAsUmask, mode_t{0640})}) {
    Result<OutputFile> file = OutputFile::Create(folder.File("out"), 0, 0, readers);
    ASSERT_TRUE(file.ok()) << file.status().message();
    ASSERT_TRUE(file->Publish(OutputFile::Existing::kReplace).ok());
    struct stat info{};
    ASSERT_EQ(stat(folder.File("out").c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, mode);
  }
  umask(before);
}

}  // namespace
}  // namespace meshnet::gguf
