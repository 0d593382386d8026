#include "session/chunk_plan.h"

#include <algorithm>

#include "base/check.h"

namespace meshnet {

PastLen ChooseStart(std::span<const StageReach> stages, PastLen limit) {
  PastLen start = limit;
  for (const StageReach& stage : stages) start = std::min(start, stage.held.agreed);
  for (const StageReach& stage : stages) {
    // A recurrent state cannot be cut: it goes on exactly where it is, or starts anew, and then all stages do.
    if (stage.truncation_class == TruncationClass::kWhole && stage.held.past != start) return PastLen(0);
  }
  return start;
}

std::vector<Chunk> PlanChunks(PastLen start, PastLen end, uint32_t rows_max, std::span<const PastLen> boundaries) {
  MESHNET_CHECK(start <= end && rows_max > 0);
  std::vector<Chunk> chunks;
  auto boundary = std::upper_bound(boundaries.begin(), boundaries.end(), start);
  while (start < end) {
    uint32_t count = std::min(rows_max, end.value - start.value);
    if (boundary != boundaries.end()) count = std::min(count, boundary->value - start.value);
    chunks.push_back({start, count});
    start = chunks.back().end();
    if (boundary != boundaries.end() && *boundary == start) ++boundary;
  }
  return chunks;
}

}  // namespace meshnet
