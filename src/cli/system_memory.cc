#include "cli/system_memory.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

namespace meshnet::cli {
namespace {

// "Name:   123 kB" of a /proc file, in bytes.
std::optional<uint64_t> KilobyteLine(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind(name + ":", 0) != 0) continue;
    std::istringstream words(line.substr(name.size() + 1));
    uint64_t kilobytes = 0;
    if (words >> kilobytes) return kilobytes * 1024;
  }
  return std::nullopt;
}

std::optional<uint64_t> NumberIn(const std::string& path) {
  std::ifstream file(path);
  uint64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

// Page cache counts as used by a cgroup, but is given back under pressure.
uint64_t InactiveFileBytes(const std::string& stat_path, const std::string& key) {
  std::ifstream file(stat_path);
  std::string name;
  uint64_t value = 0;
  while (file >> name >> value) {
    if (name == key) return value;
  }
  return 0;
}

std::optional<uint64_t> LeftInCgroup() {
  struct Layout {
    const char *limit, *used, *stat, *inactive;
  };
  for (const Layout& layout : {Layout{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat", "inactive_file"},
                               Layout{"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes",
                                      "/sys/fs/cgroup/memory/memory.stat", "total_inactive_file"}}) {
    std::optional<uint64_t> limit = NumberIn(layout.limit), used = NumberIn(layout.used);
    if (!limit || !used) continue;  // "max" is no number: no limit
    uint64_t taken = *used - std::min(*used, InactiveFileBytes(layout.stat, layout.inactive));
    return *limit - std::min(*limit, taken);
  }
  return std::nullopt;
}

}  // namespace

Result<std::optional<uint64_t>> AvailableMemory() {
  std::optional<uint64_t> available = KilobyteLine("/proc/meminfo", "MemAvailable");
  auto lower = [&available](std::optional<uint64_t> limit) {
    if (limit) available = available ? std::min(*available, *limit) : *limit;
  };
  lower(LeftInCgroup());
  if (const char* text = std::getenv("MESHNET_MEMORY_LIMIT_BYTES")) {
    const std::string_view digits(text);
    uint64_t bytes = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), bytes);
    if (digits.empty() || error != std::errc() || end != digits.data() + digits.size()) {
      return BadConfiguration("MESHNET_MEMORY_LIMIT_BYTES is \"" + std::string(digits.substr(0, 40)) + "\"; it must be a number of bytes, digits only");
    }
    lower(bytes);
  }
  return available;
}

ProcessMemory MemoryOfProcess(int pid) {
  std::string path = "/proc/" + std::to_string(pid) + "/status";
  return {KilobyteLine(path, "VmRSS").value_or(0), KilobyteLine(path, "RssFile").value_or(0)};
}

}  // namespace meshnet::cli
