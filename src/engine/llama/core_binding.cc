#include "engine/llama/core_binding.h"

#include <unistd.h>

#ifdef MESHNET_OPENMP
#include <omp.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>

#include "engine/llama/system_cores.h"

namespace meshnet {
namespace {

// How long the thread was ready to run and did not, in its life.
std::optional<Duration> WaitOf(int thread_id) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread_id) + "/schedstat");
  uint64_t ran = 0, waited = 0;
  if (!(file >> ran >> waited) || ran == 0) return std::nullopt;
  return std::chrono::nanoseconds(waited);
}

bool UserPlacesThreads() {
  for (const char* name : {"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY"}) {
    if (std::getenv(name) != nullptr) return true;
  }
  return false;
}

}  // namespace

CoreBinding::CoreBinding(uint32_t threads) : allowed_(AllowedCpus()) {
#ifdef MESHNET_OPENMP
  if (!UserPlacesThreads() && WaitOf(gettid())) places_ = PlacesOf(threads, CoresOf("", allowed_));
#else
  (void)threads;
#endif
  thread_ids_.resize(places_.size());
  waited_.resize(places_.size());
}

CoreBinding::~CoreBinding() {
  if (bound_ && thread_ids_.front() == gettid()) Bind(false);  // this thread and its team may live on
}

void CoreBinding::Before() {
  if (places_.empty()) return;
  if (bound_ != policy_.bound()) Bind(policy_.bound());
  began_ = std::chrono::steady_clock::now();
}

void CoreBinding::After() {
  if (places_.empty()) return;
  const Time now = std::chrono::steady_clock::now();
  if (policy_.Called(now, now - began_)) policy_.Waited(now, LongestWait());
}

// The team of this thread is the one llama.cpp's graphs run on: libgomp keeps it between parallel regions of the same size.
void CoreBinding::Bind(bool bound) {
  bound_ = bound;
#ifdef MESHNET_OPENMP
#pragma omp parallel num_threads(static_cast<int>(places_.size()))
  {
    const auto number = static_cast<size_t>(omp_get_thread_num());
    StayOn(bound ? places_[number] : allowed_);
    thread_ids_[number] = gettid();
  }
#endif
  LongestWait();
}

Duration CoreBinding::LongestWait() {
  Duration longest{0};
  for (size_t i = 0; i < thread_ids_.size(); ++i) {
    const Duration waited = WaitOf(thread_ids_[i]).value_or(waited_[i]);
    longest = std::max(longest, waited - waited_[i]);
    waited_[i] = waited;
  }
  return longest;
}

}  // namespace meshnet
