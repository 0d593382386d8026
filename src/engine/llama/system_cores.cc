#include "engine/llama/system_cores.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>

namespace meshnet {
namespace {

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// CPUs worth of time in a cgroup folder (v2 cpu.max, v1 cpu.cfs_quota_us), or infinity.
double Quota(const std::string& folder) {
  double quota = 0, period = 0;
  std::istringstream v2(FirstLine(folder + "/cpu.max"));
  if (v2 >> quota >> period && quota > 0 && period > 0) return quota / period;
  std::istringstream v1_quota(FirstLine(folder + "/cpu.cfs_quota_us")), v1_period(FirstLine(folder + "/cpu.cfs_period_us"));
  if (v1_quota >> quota && v1_period >> period && quota > 0 && period > 0) return quota / period;
  return std::numeric_limits<double>::infinity();
}

// The tightest quota of this process's cgroup and those above it.
double CgroupQuota(const std::string& root) {
  std::ifstream file(root + "/proc/self/cgroup");
  double tightest = std::numeric_limits<double>::infinity();
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (!controllers.empty() && (',' + controllers + ',').find(",cpu,") == std::string::npos) continue;
    const std::string mount = root + "/sys/fs/cgroup" + (controllers.empty() ? "" : "/cpu");
    std::string path = line.substr(second + 1);
    while (true) {
      tightest = std::min(tightest, Quota(mount + path));
      const size_t slash = path.find_last_of('/');
      if (slash == std::string::npos) break;
      path.resize(slash);
    }
  }
  return tightest;
}

}  // namespace

std::vector<std::vector<uint32_t>> CoresOf(const std::string& root, const std::vector<uint32_t>& cpus) {
  std::map<std::string, std::vector<uint32_t>> cores;
  for (uint32_t cpu : cpus) {
    const std::string topology = root + "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
    const std::string siblings = FirstLine(topology + "thread_siblings_list");
    cores[siblings.empty() ? "cpu" + std::to_string(cpu) : siblings].push_back(cpu);
  }
  std::vector<std::vector<uint32_t>> groups;
  for (auto& [name, members] : cores) groups.push_back(std::move(members));
  std::ranges::sort(groups);
  return groups;
}

uint32_t CountPhysicalCores(const std::string& root, const std::vector<uint32_t>& cpus) {
  const double allowed = std::min(static_cast<double>(CoresOf(root, cpus).size()), std::floor(CgroupQuota(root)));
  return std::max<uint32_t>(1, static_cast<uint32_t>(allowed));
}

std::vector<uint32_t> AllowedCpus() {
  // A mask of fixed size fails on hosts with more CPUs than it holds, so it grows.
  std::vector<uint32_t> cpus;
  for (int size = 1024; size <= 1 << 20 && cpus.empty(); size *= 2) {
    cpu_set_t* mask = CPU_ALLOC(size);
    if (!mask) break;
    const size_t bytes = CPU_ALLOC_SIZE(size);
    if (sched_getaffinity(0, bytes, mask) == 0) {
      for (int cpu = 0; cpu < size; ++cpu) {
        if (CPU_ISSET_S(cpu, bytes, mask)) cpus.push_back(static_cast<uint32_t>(cpu));
      }
    }
    CPU_FREE(mask);
  }
  return cpus;
}

bool StayOn(const std::vector<uint32_t>& cpus) {
  if (cpus.empty()) return false;
  const int size = static_cast<int>(std::ranges::max(cpus)) + 1;
  cpu_set_t* mask = CPU_ALLOC(size);
  if (!mask) return false;
  const size_t bytes = CPU_ALLOC_SIZE(size);
  CPU_ZERO_S(bytes, mask);
  for (uint32_t cpu : cpus) CPU_SET_S(cpu, bytes, mask);
  const bool done = sched_setaffinity(0, bytes, mask) == 0;
  CPU_FREE(mask);
  return done;
}

uint32_t PhysicalCores() { return CountPhysicalCores("", AllowedCpus()); }

}  // namespace meshnet
