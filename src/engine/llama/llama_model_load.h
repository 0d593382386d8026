// Loads weights and makes contexts with settings that are never left to llama.cpp's own judgement.
#pragma once

#include <string>

#include "base/status.h"
#include "engine/llama/engine_settings.h"
#include "engine/llama/llama_handles.h"

namespace meshnet {

// Maps the file, so that processes share its pages. kBadModel quotes llama.cpp's complaint; kBadConfiguration: an unknown device.
Result<LlamaModelPtr> LoadLlamaModel(const std::string& path, const EngineSettings& settings);

// Gives back the pages of the mapped file that loading touched: repacked weights live elsewhere now and holes are never read. What a step
// reads comes back from the page cache.
void ReleaseMappedPages(const std::string& path);

struct ContextCallbacks {
  ggml_backend_sched_eval_callback on_tensor = nullptr;
  void* on_tensor_data = nullptr;
  ggml_abort_callback abort = nullptr;  // for tests: ends the running llama_decode
  void* abort_data = nullptr;
};

// kOutOfMemory when llama.cpp cannot make it; its complaint is quoted.
Result<LlamaContextPtr> CreateLlamaContext(llama_model* model, const EngineSettings& settings, const ContextCallbacks& callbacks);

}  // namespace meshnet
