// What a loaded shard really occupies, from llama.cpp's own books.
#pragma once

#include <cstdint>
#include <span>

#include "engine/engine.h"
#include "ggml.h"
#include "llama.h"

namespace meshnet {

// `output_rows` is the most rows a call has flagged: llama.cpp's output buffer has rows * vocabulary floats and is in none of its own figures.
EngineMemory ReportMemory(const llama_context* context, uint32_t output_rows);

// Whether `memory` (llama_graph_look.h) is all of the context's KV and state, so that scrubbing it misses nothing.
bool CoversAllMemory(const llama_context* context, std::span<ggml_tensor* const> memory);

}  // namespace meshnet
