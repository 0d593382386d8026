#include "engine/llama/llama_boundary_capture.h"

#include <cstring>
#include <utility>

#include "ggml-backend-impl.h"

namespace meshnet {
namespace {

constexpr char kLogits[] = "result_output";  // llama.cpp's name for them; where a graph has another they are copied as ever

using TensorReader = decltype(ggml_backend_buffer_i::get_tensor);

// How a CPU buffer is read. Other host buffers may have their own way; those are left alone.
TensorReader CpuReader() {
  static const TensorReader reader = [] {
    ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), 1);
    const TensorReader found = buffer ? buffer->iface.get_tensor : nullptr;
    ggml_backend_buffer_free(buffer);
    return found;
  }();
  return reader;
}

void ReadAllButLogits(ggml_backend_buffer_t buffer, const ggml_tensor* tensor, void* data, size_t offset, size_t size) {
  if (std::strcmp(tensor->name, kLogits) != 0) CpuReader()(buffer, tensor, data, offset, size);
}

}  // namespace

LlamaBoundaryCapture::LlamaBoundaryCapture(std::string tensor, uint32_t width) : tensor_(std::move(tensor)), width_(width) {}

bool LlamaBoundaryCapture::OnTensor(ggml_tensor* tensor, bool ask, void* self) {
  auto& capture = *static_cast<LlamaBoundaryCapture*>(self);
  if (capture.tensor_ != tensor->name) return !ask;
  if (ask) return true;
  capture.Copy(*tensor);
  SkipLogits(*tensor);
  return false;
}

// llama.cpp reads the logits of every flagged row after a graph, also where the graph stopped long before them: a vocabulary of floats a row,
// which took 2 % of the time of a small model. They lie in the buffer of the boundary, as all that one host computes in a context.
void LlamaBoundaryCapture::SkipLogits(const ggml_tensor& boundary) {
  ggml_backend_buffer* buffer = boundary.view_src ? boundary.view_src->buffer : boundary.buffer;
  if (buffer->iface.get_tensor == CpuReader()) buffer->iface.get_tensor = ReadAllButLogits;
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
