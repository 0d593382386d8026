#include "engine/llama/llama_boundary_capture.h"

#include <utility>

namespace meshnet {

LlamaBoundaryCapture::LlamaBoundaryCapture(std::string tensor, uint32_t width) : tensor_(std::move(tensor)), width_(width) {}

bool LlamaBoundaryCapture::OnTensor(ggml_tensor* tensor, bool ask, void* self) {
  auto& capture = *static_cast<LlamaBoundaryCapture*>(self);
  if (capture.tensor_ != tensor->name) return !ask;
  if (ask) return true;
  capture.Copy(*tensor);
  return false;
}

void LlamaBoundaryCapture::Begin(uint32_t rows) {
  rows_wanted_ = rows;
  rows_ = 0;
  malformed_ = false;
  values_.clear();
  values_.reserve(static_cast<size_t>(rows) * width_);
}

// Called once per micro-batch, so rows are appended.
void LlamaBoundaryCapture::Copy(const ggml_tensor& tensor) {
  const auto rows = static_cast<uint32_t>(ggml_nrows(&tensor));
  if (tensor.type != GGML_TYPE_F32 || !ggml_is_contiguous(&tensor) || tensor.ne[0] != width_ || rows_ + rows > rows_wanted_) {
    malformed_ = true;
    return;
  }
  const size_t begin = values_.size();
  values_.resize(begin + static_cast<size_t>(rows) * width_);
  ggml_backend_tensor_get(&tensor, values_.data() + begin, 0, ggml_nbytes(&tensor));
  rows_ += rows;
}

std::vector<float> LlamaBoundaryCapture::Take() {
  if (malformed_ || rows_ != rows_wanted_) values_.clear();
  return std::exchange(values_, {});
}

}  // namespace meshnet
