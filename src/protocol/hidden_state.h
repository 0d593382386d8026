// Rows of f32 values that cross a boundary: hidden states between stages, or logits from the tail.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"

namespace meshnet {

// Looked at for every row that crosses a boundary, so written without an early exit: the loop becomes vector code.
inline bool AllFinite(std::span<const float> values) {
  constexpr uint32_t kExponent = 0x7f800000;  // all ones: infinite or not a number
  uint32_t broken = 0;
  for (float value : values) broken |= (std::bit_cast<uint32_t>(value) & kExponent) == kExponent ? 1u : 0u;
  return broken == 0;
}

// Row major `[rows][width]`, f32. Moves freely; a copy must be asked for by name because a chunk is megabytes.
class HiddenState {
 public:
  HiddenState() = default;
  HiddenState(uint32_t rows, uint32_t width, std::vector<float> values) : rows_(rows), width_(width), values_(std::move(values)) {
    MESHNET_CHECK(values_.size() == static_cast<size_t>(rows) * width);
  }
  HiddenState(HiddenState&& other) noexcept
      : rows_(std::exchange(other.rows_, 0)), width_(std::exchange(other.width_, 0)), values_(std::move(other.values_)) {}
  HiddenState& operator=(HiddenState&& other) noexcept {
    rows_ = std::exchange(other.rows_, 0);
    width_ = std::exchange(other.width_, 0);
    values_ = std::move(other.values_);
    return *this;
  }
  HiddenState(const HiddenState&) = delete;
  HiddenState& operator=(const HiddenState&) = delete;

  HiddenState Copy() const { return HiddenState(rows_, width_, std::vector<float>(values_)); }

  uint32_t rows() const { return rows_; }
  uint32_t width() const { return width_; }
  bool empty() const { return rows_ == 0; }
  std::span<const float> values() const { return values_; }
  std::span<const float> row(uint32_t index) const { return values().subspan(static_cast<size_t>(index) * width_, width_); }
  bool all_finite() const { return AllFinite(values_); }

 private:
  uint32_t rows_ = 0;
  uint32_t width_ = 0;
  std::vector<float> values_;
};

}  // namespace meshnet
