// What a context's compute graph consists of, found once when the context is made and before anything runs.
#pragma once

#include <string>
#include <vector>

#include "ggml.h"
#include "llama.h"

namespace meshnet {

struct LlamaGraphLook {
  bool has_boundary = false;         // an f32 tensor of the boundary's name and width
  std::vector<ggml_tensor*> memory;  // the tensors that hold KV cells or recurrent state; they live as long as the context
};

// `boundary` may be empty: then it is not looked for.
LlamaGraphLook LookAtGraph(llama_context* context, const std::string& boundary, uint32_t width);

}  // namespace meshnet
