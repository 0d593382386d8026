#include "wire/frame.h"

#include <bit>
#include <cstring>

namespace meshnet {
namespace {

static_assert(std::endian::native == std::endian::little, "frames travel as little-endian f32; a big-endian host needs a swap here");

}  // namespace

std::variant<HiddenState, FrameFault> ValidateFrame(const shard::v1::Frame& frame) {
  if (frame.layout_version() != 1) {
    return FrameFault{Detail::kEncoding, "frame layout_version is " + std::to_string(frame.layout_version()) + ", this build knows 1"};
  }
  if (frame.encoding() != shard::v1::ENCODING_F32) {
    return FrameFault{Detail::kEncoding, "frame encoding " + std::to_string(frame.encoding()) + " is not served: only F32 (1) is"};
  }
  // Both factors are below 2^32, so the product of the first two fits 64 bits; times 4 only after the bound.
  uint64_t values = uint64_t{frame.rows()} * frame.width();
  if (values == 0 || values > frame.payload().size() || values * sizeof(float) != frame.payload().size()) {
    return FrameFault{Detail::kShape, "frame of " + std::to_string(frame.rows()) + " x " + std::to_string(frame.width()) + " f32 has a payload of " +
                                          std::to_string(frame.payload().size()) + " bytes"};
  }
  std::vector<float> rows(values);
  std::memcpy(rows.data(), frame.payload().data(), frame.payload().size());
  if (!AllFinite(rows)) return FrameFault{Detail::kNonFinite, "frame holds a value that is not finite"};
  return HiddenState(frame.rows(), frame.width(), std::move(rows));
}

}  // namespace meshnet
