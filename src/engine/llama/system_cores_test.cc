#include "engine/llama/system_cores.h"

#include <filesystem>
#include <fstream>
#include <thread>

#include "gtest/gtest.h"

namespace meshnet {
namespace {

class SystemCoresTest : public testing::Test {
 protected:
  SystemCoresTest() : root_(testing::TempDir() + "cores." + testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::filesystem::remove_all(root_);
    for (int cpu = 0; cpu < 8; ++cpu) {  // four cores of two threads: 0 and 4, 1 and 5, ...
      const std::string low = std::to_string(cpu % 4), high = std::to_string(cpu % 4 + 4);
      Write("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list", low + "," + high);
    }
  }
  ~SystemCoresTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text << "\n";
  }

  std::string root_;
};

TEST_F(SystemCoresTest, CountsHyperThreadsOnce) {
  EXPECT_EQ(CountPhysicalCores(root_, {0, 1, 2, 3, 4, 5, 6, 7}), 4u);
  EXPECT_EQ(CountPhysicalCores(root_, {0, 4}), 1u);
  EXPECT_EQ(CountPhysicalCores(root_, {1, 2}), 2u);
}

TEST_F(SystemCoresTest, KnowsWhichCpusShareACore) {
  using Cores = std::vector<std::vector<uint32_t>>;
  EXPECT_EQ(CoresOf(root_, {0, 1, 4, 5, 6}), (Cores{{0, 4}, {1, 5}, {6}}));
  EXPECT_EQ(CoresOf(root_ + "/nowhere", {2, 1}), (Cores{{1}, {2}}));
}

TEST_F(SystemCoresTest, AThreadStaysWhereItIsTold) {
  std::thread([] {
    const std::vector<uint32_t> all = AllowedCpus();
    ASSERT_FALSE(all.empty());
    ASSERT_TRUE(StayOn({all.back()}));
    EXPECT_EQ(AllowedCpus(), std::vector<uint32_t>{all.back()});
    EXPECT_FALSE(StayOn({}));
    ASSERT_TRUE(StayOn(all));
    EXPECT_EQ(AllowedCpus(), all);
  }).join();
}

TEST_F(SystemCoresTest, UnknownTopologyCountsLogicalCpus) { EXPECT_EQ(CountPhysicalCores(root_ + "/nowhere", {0, 1, 2}), 3u); }

TEST_F(SystemCoresTest, QuotaOfAParentGroupCounts) {
  Write("/proc/self/cgroup", "0::/pod/worker");
  Write("/sys/fs/cgroup/pod/worker/cpu.max", "max 100000");
  Write("/sys/fs/cgroup/pod/cpu.max", "250000 100000");
  EXPECT_EQ(CountPhysicalCores(root_, {0, 1, 2, 3}), 2u);
}

TEST_F(SystemCoresTest, QuotaOfTheOldLayout) {
  Write("/proc/self/cgroup", "4:cpu,cpuacct:/pod");
  Write("/sys/fs/cgroup/cpu/pod/cpu.cfs_quota_us", "50000");
  Write("/sys/fs/cgroup/cpu/pod/cpu.cfs_period_us", "100000");
  EXPECT_EQ(CountPhysicalCores(root_, {0, 1, 2, 3}), 1u);
}

TEST_F(SystemCoresTest, ThisProcessMayUseAtLeastOne) { EXPECT_GE(PhysicalCores(), 1u); }

}  // namespace
}  // namespace meshnet
