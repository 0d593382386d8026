// Owning pointers to what llama.cpp hands out.
#pragma once

#include <memory>

#include "llama.h"

namespace meshnet {

struct LlamaModelFree {
  void operator()(llama_model* model) const { llama_model_free(model); }
};
struct LlamaContextFree {
  void operator()(llama_context* context) const { llama_free(context); }
};
struct LlamaSamplerFree {
  void operator()(llama_sampler* sampler) const { llama_sampler_free(sampler); }
};
using LlamaModelPtr = std::unique_ptr<llama_model, LlamaModelFree>;
using LlamaContextPtr = std::unique_ptr<llama_context, LlamaContextFree>;
using LlamaSamplerPtr = std::unique_ptr<llama_sampler, LlamaSamplerFree>;

}  // namespace meshnet
