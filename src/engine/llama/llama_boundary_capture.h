// Copies the hidden state that leaves a range out of a running graph and stops it there: what would follow is the final norm and the head.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ggml-backend.h"
#include "ggml.h"

namespace meshnet {

// Given to llama.cpp as cb_eval, so it must stay where it is for the life of the context.
class LlamaBoundaryCapture {
 public:
  // `tensor` is the boundary's name in the graph, "l_out-11".
  LlamaBoundaryCapture(std::string tensor, uint32_t width);
  LlamaBoundaryCapture(const LlamaBoundaryCapture&) = delete;
  LlamaBoundaryCapture& operator=(const LlamaBoundaryCapture&) = delete;

  static bool OnTensor(ggml_tensor* tensor, bool ask, void* self);

  const std::string& tensor() const { return tensor_; }
  // Before a llama_decode of `rows` rows.
  void Begin(uint32_t rows);
  // Its rows in the order of micro-batches, which for ascending sequences is the order of the batch. Empty when they are not all there.
  std::vector<float> Take();

 private:
  void Copy(const ggml_tensor& tensor);
  static void SkipLogits(const ggml_tensor& boundary);

  std::string tensor_;
  uint32_t width_;
  uint32_t rows_wanted_ = 0;
  uint32_t rows_ = 0;
  bool malformed_ = false;
  std::vector<float> values_;
};

}  // namespace meshnet
