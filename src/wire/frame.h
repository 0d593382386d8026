// A tensor frame of the wire into rows of f32, checked.
#pragma once

#include <string>
#include <variant>

#include "meshnet/shard/v1/shard.pb.h"
#include "protocol/hidden_state.h"
#include "protocol/refusal.h"

namespace meshnet {

struct FrameFault {
  Detail detail = Detail::kShape;
  std::string message;
};
// Layout, encoding, and that the payload is exactly rows * width * 4 bytes, before anything is allocated; then that every value is finite.
std::variant<HiddenState, FrameFault> ValidateFrame(const shard::v1::Frame& frame);

}  // namespace meshnet
