#include "engine/llama/core_binding.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "engine/llama/system_cores.h"
#include "gtest/gtest.h"

namespace meshnet {
namespace {

// Threads of this process that may use one logical CPU only.
size_t BoundThreads() {
  size_t bound = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(task.path() / "status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("Cpus_allowed_list:")) bound += line.find_first_of(",-") == std::string::npos ? 1 : 0;
    }
  }
  return bound;
}

class CoreBindingEffectsTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::vector<uint32_t> cpus = AllowedCpus();
    if (cpus.size() < 2) GTEST_SKIP() << "with one logical CPU there is nothing to bind to";
    threads_ = static_cast<uint32_t>(cpus.size());
    ASSERT_EQ(BoundThreads(), 0u);
  }
  uint32_t threads_ = 0;
};

TEST_F(CoreBindingEffectsTest, BindsTheTeamAndLetsAllOfItGo) {
  {
    CoreBinding binding(threads_);
    EXPECT_EQ(BoundThreads(), 0u);
    binding.Before();
    if (BoundThreads() == 0) GTEST_SKIP() << "built without OpenMP, the environment places its threads, or the system does not tell how long they wait";
    EXPECT_EQ(BoundThreads(), threads_);
    binding.After();
    EXPECT_EQ(BoundThreads(), threads_);
  }
  EXPECT_EQ(BoundThreads(), 0u);
  EXPECT_EQ(AllowedCpus().size(), threads_);
}

TEST_F(CoreBindingEffectsTest, LeavesThreadsAloneThatTheUserPlaces) {
  setenv("OMP_PROC_BIND", "false", 1);
  CoreBinding binding(threads_);
  unsetenv("OMP_PROC_BIND");
  binding.Before();
  EXPECT_EQ(BoundThreads(), 0u);
}

TEST_F(CoreBindingEffectsTest, LeavesAnyOtherNumberOfThreadsAlone) {
  CoreBinding binding(threads_ + 1);
  binding.Before();
  EXPECT_EQ(BoundThreads(), 0u);
}

}  // namespace
}  // namespace meshnet
