// Whether a row holds only numbers. Written without an early exit so that the compiler can take several values at once.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

namespace meshnet {

inline bool AllFinite(std::span<const float> values) {
  constexpr uint32_t kExponent = 0x7f800000;  // all ones: infinite or not a number
  uint32_t broken = 0;
  for (float value : values) broken |= (std::bit_cast<uint32_t>(value) & kExponent) == kExponent ? 1u : 0u;
  return broken == 0;
}

}  // namespace meshnet
