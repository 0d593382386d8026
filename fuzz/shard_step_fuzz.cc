// Bytes as a ForwardRequest: every step is either our type with all promises kept, or a typed refusal.
#include <variant>

#include "base/check.h"
#include "wire/validate.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  meshnet::shard::v1::ForwardRequest request;
  if (!request.ParseFromArray(data, static_cast<int>(size))) return 0;
  meshnet::ShardShape shape;
  shape.tail = true;
  shape.boundary_width = 2;
  shape.vocabulary_size = 8;
  shape.chunk_rows_max = 4;
  shape.frame_bytes_max = 4096;
  for (const auto& wire : request.steps()) {
    auto verdict = meshnet::ValidateStep(wire, shape, meshnet::Time());
    const auto* incoming = std::get_if<meshnet::IncomingStep>(&verdict);
    if (incoming == nullptr || incoming->fields) continue;
    const meshnet::Step& step = incoming->step;
    MESHNET_CHECK(!step.tokens.empty() && step.tokens.size() <= shape.chunk_rows_max);
    for (meshnet::Token token : step.tokens) MESHNET_CHECK(token >= 0 && token < 8);
    MESHNET_CHECK(step.input && step.input->rows() == step.tokens.size() && step.input->width() == shape.boundary_width);
    MESHNET_CHECK(step.input->all_finite());
  }
  return 0;
}
