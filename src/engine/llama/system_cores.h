// How many cores this process may really use: hyper-threads counted once, CPU affinity and cgroup quota respected.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace meshnet {

// `root` is "" outside tests; `cpus` are the logical CPUs the affinity mask allows. At least 1.
uint32_t CountPhysicalCores(const std::string& root, const std::vector<uint32_t>& cpus);

// `cpus` by the core they belong to.
std::vector<std::vector<uint32_t>> CoresOf(const std::string& root, const std::vector<uint32_t>& cpus);

// The logical CPUs this thread may use; empty when the system does not say.
std::vector<uint32_t> AllowedCpus();
// Of this thread from now on. False: it stays where it is.
bool StayOn(const std::vector<uint32_t>& cpus);

// Of this process.
uint32_t PhysicalCores();

}  // namespace meshnet
