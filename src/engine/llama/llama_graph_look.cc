#include "engine/llama/llama_graph_look.h"

#include <set>
#include <string_view>

#include "llama-ext.h"

namespace meshnet {
namespace {

// llama.cpp names them cache_k_l0, cache_v_l0, cache_r_l0, cache_s_l0, … with a tag of its cache in between. What it computes from them, a copy in
// another type for example, keeps the beginning of the name.
bool IsMemory(const ggml_tensor* tensor) {
  return tensor->op == GGML_OP_NONE && !tensor->view_src && std::string_view(tensor->name).starts_with("cache_");
}

void Collect(ggml_tensor* tensor, std::set<ggml_tensor*>& memory) {
  if (tensor->view_src) tensor = tensor->view_src;
  if (IsMemory(tensor)) memory.insert(tensor);
}

}  // namespace

LlamaGraphLook LookAtGraph(llama_context* context, const std::string& boundary, uint32_t width) {
  LlamaGraphLook look;
  // One token of every sequence: the only shape that both layouts of the cells take.
  const uint32_t sequences = llama_n_seq_max(context);
  ggml_cgraph* graph = llama_graph_reserve(context, sequences, sequences, sequences);
  if (!graph) return look;
  std::set<ggml_tensor*> memory;
  for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
    ggml_tensor* node = ggml_graph_node(graph, i);
    if (!boundary.empty() && boundary == node->name) look.has_boundary = node->type == GGML_TYPE_F32 && node->ne[0] == width;
    Collect(node, memory);
    for (ggml_tensor* source : node->src) {
      if (source) Collect(source, memory);
    }
  }
  look.memory.assign(memory.begin(), memory.end());
  return look;
}

}  // namespace meshnet
