#include "engine/llama/core_binding_policy.h"

#include <algorithm>

namespace meshnet {

std::vector<std::vector<uint32_t>> PlacesOf(uint32_t threads, const std::vector<std::vector<uint32_t>>& cores) {
  if (threads < 2) return {};
  if (threads == cores.size()) return cores;
  std::vector<std::vector<uint32_t>> each;
  for (const std::vector<uint32_t>& core : cores) {
    for (uint32_t cpu : core) each.push_back({cpu});
  }
  return threads == each.size() ? each : std::vector<std::vector<uint32_t>>();
}

bool CoreBindingPolicy::Called(Time now, Duration took) {
  if (!bound_) {
    bound_ = now >= again_at_;
    return false;
  }
  took_ += took;
  return took_ >= kJudgedAfter;
}

void CoreBindingPolicy::Waited(Time now, Duration longest) {
  if (std::chrono::duration<double>(longest) > std::chrono::duration<double>(took_) * kWaitMax) {
    bound_ = false;
    again_at_ = now + pause_;
    pause_ = std::min(pause_ * 2, kPauseMax);
  } else {
    pause_ = kPauseMin;
  }
  took_ = Duration::zero();
}

}  // namespace meshnet
