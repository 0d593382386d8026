// The effects of core_binding_policy.h: which CPUs the threads of llama.cpp's OpenMP team may use.
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "engine/llama/core_binding_policy.h"

namespace meshnet {

// All calls on the one thread that computes.
class CoreBinding {
 public:
  // `threads`: of each call. Nothing is bound when the user told OpenMP where its threads belong, when llama.cpp was built without it, or when the
  // system does not tell how long a thread waited for its core.
  explicit CoreBinding(uint32_t threads);
  ~CoreBinding();
  CoreBinding(const CoreBinding&) = delete;
  CoreBinding& operator=(const CoreBinding&) = delete;

  // Around each call that computes.
  void Before();
  void After();

 private:
  void Bind(bool bound);
  Duration LongestWait();

  const std::vector<uint32_t> allowed_;        // before anything was bound
  std::vector<std::vector<uint32_t>> places_;  // by the thread's number in its team; empty: nothing is ever bound
  CoreBindingPolicy policy_;
  bool bound_ = false;
  Time began_{};
  std::vector<int> thread_ids_;                // by the same number, once bound
  std::vector<Duration> waited_;               // likewise: until the last look
};

}  // namespace meshnet
