#include "cli/private_folder.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>

namespace meshnet::cli {
namespace {

namespace fs = std::filesystem;

class PrivateFolderTest : public testing::Test {
 protected:
  void SetUp() override {
    base_ = testing::TempDir() + "private_folder_" + std::to_string(getpid());
    fs::create_directories(base_);
    setenv("TMPDIR", base_.c_str(), 1);
  }
  void TearDown() override {
    unsetenv("TMPDIR");
    fs::remove_all(base_);
  }
  std::string base_;
};

TEST_F(PrivateFolderTest, IsOursAloneAndGoesWithItsOwner) {
  std::string path;
  {
    Result<PrivateFolder> folder = PrivateFolder::Create();
    ASSERT_TRUE(folder.ok()) << folder.status().message();
    path = folder->path();
    struct stat info;
    ASSERT_EQ(stat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0700u);
    std::ofstream(path + "/worker-0.sock") << "x";
  }
  EXPECT_FALSE(fs::exists(path));
}

TEST_F(PrivateFolderTest, RemovesWhatAKilledOwnerLeftButNotWhatIsInUse) {
  fs::create_directories(base_ + "/meshnet-dead");
  std::ofstream(base_ + "/meshnet-dead/owner.lock") << "";
  fs::create_directories(base_ + "/meshnet-young");  // no lock yet: its owner is about to take it
  fs::create_directories(base_ + "/unrelated");
  std::ofstream(base_ + "/unrelated/owner.lock") << "";
  Result<PrivateFolder> first = PrivateFolder::Create();
  ASSERT_TRUE(first.ok());
  Result<PrivateFolder> second = PrivateFolder::Create();
  ASSERT_TRUE(second.ok());
  EXPECT_FALSE(fs::exists(base_ + "/meshnet-dead"));
  EXPECT_TRUE(fs::exists(base_ + "/meshnet-young"));
  EXPECT_TRUE(fs::exists(base_ + "/unrelated"));
  EXPECT_TRUE(fs::exists(first->path())) << "its owner lives";
}

TEST_F(PrivateFolderTest, SaysWhereItCannotWrite) {
  setenv("TMPDIR", (base_ + "/missing").c_str(), 1);
  Result<PrivateFolder> folder = PrivateFolder::Create();
  ASSERT_FALSE(folder.ok());
  EXPECT_NE(folder.status().message().find(base_ + "/missing"), std::string::npos);
}

}  // namespace
}  // namespace meshnet::cli
