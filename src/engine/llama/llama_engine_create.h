// CreateLlamaShardEngine for tests, which may break a running computation.
#pragma once

#include <memory>

#include "base/status.h"
#include "engine/engine_options.h"
#include "engine/llama/llama_engine.h"

namespace meshnet {

Result<std::unique_ptr<LlamaEngine>> CreateLlamaEngine(const EngineOptions& options, const EngineFaultHook& hook);

}  // namespace meshnet
