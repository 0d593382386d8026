// Which of llama.cpp's sequences (a lane) holds which of ours, and when exchanging two pays. With one stream of cells per sequence llama.cpp
// computes a batch in as many passes over the weights as its sequence ids have runs of neighbours (docs/engine.md, Lanes), and sessions that
// decode together seldom have ids in a row: others wait, are idle or still prefill in between. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "base/ids.h"

namespace meshnet {

class LaneTable {
 public:
  // Each sequence begins on the lane of its own number.
  explicit LaneTable(uint32_t lanes);

  int32_t lane(SequenceId sequence) const;

  // `sequences` (each once) are about to be computed in one call. `pass_cost` is one pass over the weights, `cost` is exchanging two sequences,
  // both in bytes moved. What passes beyond the first have cost so far is kept; once it is as much as the exchanges that would put these
  // sequences in a row, they are returned, so the exchanges never cost more than the passes did. Exchange and report each in order.
  using ExchangeCost = std::function<uint64_t(SequenceId, SequenceId)>;
  std::vector<std::pair<SequenceId, SequenceId>> Plan(std::span<const SequenceId> sequences, uint64_t pass_cost, const ExchangeCost& cost);
  void Exchanged(SequenceId a, SequenceId b);

 private:
  std::vector<int32_t> lanes_;           // by sequence
  std::vector<SequenceId> sequences_;    // by lane
  uint64_t wasted_ = 0;
};

}  // namespace meshnet
