// Where a (re-)prefill starts and how it is cut into chunks. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "protocol/describe.h"
#include "session/journal.h"

namespace meshnet {

struct Chunk {
  PastLen start;
  uint32_t count = 0;

  PastLen end() const { return PastLen(start.value + count); }
  friend bool operator==(const Chunk&, const Chunk&) = default;
};

// A stage as the choice of a start sees it.
struct StageReach {
  StageHeld held;
  TruncationClass truncation_class = TruncationClass::kFull;
};

// The largest position <= `limit` from which every stage can go on. A kWindow stage is trusted to reach any length; when it cannot, it says
// which it can (kTruncateUnsupported), and that is the next `limit`.
PastLen ChooseStart(std::span<const StageReach> stages, PastLen limit);

// Cuts [start, end) into chunks of at most `rows_max` tokens that also end at each of the sorted `boundaries` they meet.
std::vector<Chunk> PlanChunks(PastLen start, PastLen end, uint32_t rows_max, std::span<const PastLen> boundaries);

}  // namespace meshnet
