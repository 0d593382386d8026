// The one source of chance of a run: everything that is drawn comes from here, so a seed is a run.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "base/check.h"
#include "base/clock.h"

namespace meshnet::sim {

// splitmix64. Equal on every machine and library, which std's distributions are not.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t x = state_ += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
  }
  // In [0, bound).
  uint32_t Below(uint32_t bound) {
    MESHNET_CHECK(bound > 0);
    return static_cast<uint32_t>(Next() % bound);
  }
  // In [low, high].
  uint32_t Between(uint32_t low, uint32_t high) { return low + Below(high - low + 1); }
  Duration Between(Duration low, Duration high) {
    return low + Duration(static_cast<int64_t>(Next() % static_cast<uint64_t>((high - low).count() + 1)));
  }
  bool Chance(uint32_t thousandths) { return Below(1000) < thousandths; }
  bool Coin() { return Next() % 2 == 0; }
  template <typename T>
  T Pick(std::initializer_list<T> choices) {
    return *(choices.begin() + Below(static_cast<uint32_t>(choices.size())));
  }

  template <typename Id>
  Id Name() {
    Id id;
    for (uint8_t& byte : id.bytes) byte = static_cast<uint8_t>(Next());
    return id;
  }

 private:
  uint64_t state_;
};

}  // namespace meshnet::sim
