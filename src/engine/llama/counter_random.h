// Randomness as a function of where it is used: a position that is computed again draws the same number.
#pragma once

#include <cstdint>

namespace meshnet {

// SplitMix64's finaliser: every bit of the input moves every bit of the result.
constexpr uint64_t MixBits(uint64_t value) {
  value += 0x9e3779b97f4a7c15ULL;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

// In [0, 1). `attempt` counts the draws at one position: a grammar that rejects the first token asks again.
constexpr double UniformAt(uint32_t seed, uint32_t position, uint32_t attempt) {
  const uint64_t bits = MixBits(MixBits(MixBits(seed) ^ position) ^ attempt);
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

}  // namespace meshnet
