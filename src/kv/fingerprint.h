// What makes two messages the same step: XXH3 over its canonical fields. Epoch, incarnation, acknowledgement and deadline are left out,
// because a repeated step may carry newer ones.
#pragma once

#include <compare>
#include <cstdint>

#include "protocol/step.h"

namespace meshnet::kv {

struct Fingerprint {
  uint64_t high = 0;
  uint64_t low = 0;
  friend auto operator<=>(const Fingerprint&, const Fingerprint&) = default;
};

// Over the fields themselves, never over serialized bytes, which are not canonical. Hashes the whole input frame. For one process only.
Fingerprint FingerprintOf(const Step& step);

}  // namespace meshnet::kv
