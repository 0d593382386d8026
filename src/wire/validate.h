// Hostile bytes into our types, on the worker's side. Every field is checked before anything behind this looks at it.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>

#include "base/clock.h"
#include "meshnet/shard/v1/shard.pb.h"
#include "protocol/describe.h"
#include "protocol/refusal.h"
#include "protocol/session_open.h"
#include "protocol/step.h"

namespace meshnet {

// What a step must fit.
struct ShardShape {
  bool head = false;
  bool tail = false;
  uint32_t boundary_width = 0;
  uint32_t vocabulary_size = 0;
  uint32_t chunk_rows_max = 0;
  uint64_t frame_bytes_max = 0;
};
ShardShape ShapeOf(const ShardDescription& description);
// What one step may weigh on a shard of this width.
uint64_t FrameBytesMax(uint32_t chunk_rows_max, uint32_t boundary_width);

// A step that can be addressed. `fields` is what is wrong with it otherwise: it is reported only at its place in the order of checks, so it
// goes to kv::HotKv::Admit together with the step, whose bad fields are left empty (tokens are kept).
struct IncomingStep {
  Step step;
  std::optional<Refusal> fields;
};
// A Refusal alone when the step has no address: too large a frame, no session, epoch 0, no incarnation, step_seq 0.
std::variant<IncomingStep, Refusal> ValidateStep(const shard::v1::Step& wire, const ShardShape& shape, Time now);

std::variant<SessionKey, Refusal> ValidateSessionRef(const shard::v1::SessionRef& wire);
// The protocol version first (kProtocolMismatch), then the fields.
std::variant<OpenRequest, Refusal> ValidateOpen(const shard::v1::OpenRequest& wire);
std::optional<Refusal> ValidateVersion(uint32_t major, uint32_t minor);

}  // namespace meshnet
