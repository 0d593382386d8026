// How many cores this process may really use: hyper-threads counted once, CPU affinity and cgroup quota respected.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace meshnet {

// `root` is "" outside tests; `cpus` are the logical CPUs the affinity mask allows. At least 1.
uint32_t CountPhysicalCores(const std::string& root, const std::vector<uint32_t>& cpus);

// Of this process.
uint32_t PhysicalCores();

}  // namespace meshnet
