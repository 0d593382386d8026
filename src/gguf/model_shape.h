// What a GGUF header says about a model, as far as cutting, planning and running need it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "gguf/model_file.h"
#include "protocol/describe.h"

namespace meshnet::gguf {

enum class LayerKind { kFullAttention, kWindowAttention, kRecurrent, kNone };

// Per trunk layer: what its KV holds. Elements of one cell = heads_kv * (key_length + value_length), or the latent width (MLA).
struct LayerShape {
  LayerKind kind = LayerKind::kFullAttention;
  uint32_t heads = 0;
  uint32_t heads_kv = 0;
  uint32_t key_elements = 0;     // of one cell: heads_kv * key_length (MLA: as llama.cpp caches it)
  uint32_t value_elements = 0;
  uint64_t weight_bytes = 0;
};

struct ModelShape {
  std::string architecture;
  std::string name;              // general.name, or the file's stem
  uint32_t layer_count = 0;      // trunk only
  uint32_t prediction_layers = 0;
  uint32_t embedding_width = 0;
  uint32_t boundary_width = 0;
  uint32_t vocabulary_size = 0;
  uint32_t context_length = 0;   // trained
  uint32_t window_tokens = 0;    // sliding window; 0: none
  bool tied = false;             // no output.weight: the head's token_embd is the tail's output
  TruncationClass truncation_class = TruncationClass::kFull;
  uint64_t parameters = 0;
  uint64_t weight_bytes = 0;
  std::vector<LayerShape> layers;
};

// kBadModel names file and key.
Result<ModelShape> ReadModelShape(const ModelFile& file);

}  // namespace meshnet::gguf
