#include "engine/llama/lane_table.h"

#include <algorithm>

#include "base/check.h"

namespace meshnet {

LaneTable::LaneTable(uint32_t lanes) {
  for (uint32_t i = 0; i < lanes; ++i) {
    lanes_.push_back(static_cast<int32_t>(i));
    sequences_.emplace_back(static_cast<int32_t>(i));
  }
}

int32_t LaneTable::lane(SequenceId sequence) const {
  MESHNET_CHECK(sequence.value >= 0 && static_cast<size_t>(sequence.value) < lanes_.size());
  return lanes_[static_cast<size_t>(sequence.value)];
}

std::vector<std::pair<SequenceId, SequenceId>> LaneTable::Plan(std::span<const SequenceId> sequences, uint64_t pass_cost,
                                                               const ExchangeCost& cost) {
  std::vector<bool> wanted(lanes_.size(), false);
  for (SequenceId sequence : sequences) wanted[static_cast<size_t>(lane(sequence))] = true;
  size_t runs = 0;
  for (size_t i = 0; i < wanted.size(); ++i) runs += wanted[i] && (i == 0 || !wanted[i - 1]);
  if (runs < 2) return {};
  wasted_ += (runs - 1) * pass_cost;

  // The row of lanes that holds most of them already.
  const size_t length = sequences.size();
  size_t inside = 0;
  for (size_t i = 0; i < length; ++i) inside += wanted[i];
  size_t begin = 0, most = inside;
  for (size_t end = length; end < wanted.size(); ++end) {
    inside = inside + wanted[end] - wanted[end - length];
    if (inside > most) most = inside, begin = end + 1 - length;
  }

  std::vector<std::pair<SequenceId, SequenceId>> exchanges;
  uint64_t price = 0;
  size_t place = begin;
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (!wanted[i] || (i >= begin && i < begin + length)) continue;
    while (wanted[place]) ++place;
    exchanges.emplace_back(sequences_[i], sequences_[place]);
    price += cost(sequences_[i], sequences_[place]);
    ++place;
  }
  if (wasted_ < price) return {};
  wasted_ = 0;
  return exchanges;
}

void LaneTable::Exchanged(SequenceId a, SequenceId b) {
  std::swap(lanes_[static_cast<size_t>(a.value)], lanes_[static_cast<size_t>(b.value)]);
  sequences_[static_cast<size_t>(lane(a))] = a;
  sequences_[static_cast<size_t>(lane(b))] = b;
}

}  // namespace meshnet
