// llama.cpp's memory as llama.cpp has it: which positions of a sequence lie in cells, and what lies in cells that nobody owns. Reads the pinned
// sources' own classes, since the public API does not say which cell is free.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "engine/llama/llama_engine.h"

class llama_kv_cache;
class llama_memory_recurrent;

namespace meshnet::differential {

class LlamaCells {
 public:
  // `engine` outlives this object; flash attention is on, so that a row of a tensor is one cell's.
  explicit LlamaCells(const LlamaEngine& engine);

  // As llama_memory_seq_pos_min and _max say: -1 when nothing is held.
  int32_t first(SequenceId sequence) const;
  int32_t last(SequenceId sequence) const;
  // What is wrong with the cells of a sequence that holds [0, past): a position that the next token sees is missing, is there twice, or one
  // beyond `past` is left. Empty when all is well.
  std::string Fault(SequenceId sequence, PastLen past) const;

  // Large finite values into every row of every free cell. Rows that hold a value that is not finite are left as they are, since it is the
  // engine's to clear them. Returns how many rows were filled anew.
  uint64_t FillFree();

  // Cells of one sequence's sliding window; 0 without one.
  uint32_t window_cells() const;

 private:
  void FillRow(ggml_tensor* tensor, size_t offset, uint64_t& filled);

  const LlamaEngine& engine_;
  const llama_kv_cache* cells_ = nullptr;    // of full attention
  const llama_kv_cache* window_ = nullptr;   // of sliding windows
  const llama_memory_recurrent* states_ = nullptr;
  std::vector<uint8_t> row_, pattern_;
  std::vector<float> values_;
};

}  // namespace meshnet::differential
