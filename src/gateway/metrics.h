// The gateway's metrics under the names of the contract. Thread-safe. No value comes from a user's text, key or session id.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "protocol/describe.h"

namespace meshnet::gateway {

class Metrics {
 public:
  Metrics();
  ~Metrics();

  // One answered choice. Prompt tokens count once for each choice that computed or reused them.
  void CountAnswer(uint32_t prompt_tokens, uint32_t cached_tokens, uint32_t generated_tokens, uint32_t replays);
  // `reason` is one of a closed set of words.
  void CountRefusal(const std::string& reason);
  void ObserveFirstToken(double seconds);
  void ObserveInterToken(double seconds);
  void ObserveQueue(double seconds);
  void ObserveHop(size_t stage, double seconds);
  void SetLoad(uint32_t running, uint32_t waiting);
  // What each worker counts, by its address; a worker that started anew counts from nothing, so only growth is added.
  void UpdateWorkers(const std::map<std::string, ShardStats>& stats);

  struct HopTimes {
    double p50 = 0, p99 = 0;  // seconds, over the latest hops; 0 before the first
  };
  HopTimes Hops(size_t stage) const;

  // Prometheus text exposition.
  std::string Text() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace meshnet::gateway
