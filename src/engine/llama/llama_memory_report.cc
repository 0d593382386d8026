#include "engine/llama/llama_memory_report.h"

#include <algorithm>

#include "llama-ext.h"

namespace meshnet {

EngineMemory ReportMemory(const llama_context* context, uint32_t output_rows) {
  EngineMemory memory;
  const llama_model* model = llama_get_model(context);
  // The sum over tensors: the mapped buffer in llama.cpp's breakdown spans the file, so it counts repacked weights twice.
  memory.weight_bytes = llama_model_size(model);
  for (const auto& [type, bytes] : llama_get_memory_breakdown(context)) {
    memory.kv_bytes += bytes.context;
    memory.compute_bytes += bytes.compute;
  }
  const auto vocabulary = static_cast<uint64_t>(llama_vocab_n_tokens(llama_model_get_vocab(model)));
  memory.compute_bytes += vocabulary * sizeof(float) * std::max(output_rows, llama_n_seq_max(context));
  return memory;
}

bool CoversAllMemory(const llama_context* context, std::span<ggml_tensor* const> memory) {
  uint64_t found = 0, allocated = 0;
  for (const ggml_tensor* tensor : memory) found += ggml_nbytes(tensor);
  for (const auto& [type, bytes] : llama_get_memory_breakdown(context)) allocated += bytes.context;
  constexpr uint64_t kPaddingOfATensor = 512;  // buffers align each tensor
  return found <= allocated && allocated - found <= kPaddingOfATensor * (memory.size() + 1);
}

}  // namespace meshnet
