#include "engine/llama/llama_memory_scrub.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "ggml-backend.h"

namespace meshnet {
namespace {

constexpr size_t kBlockBytes = 1 << 20;

// Element by element for plain floats: without flash attention V is stored transposed, so that neighbours in a row belong to other cells.
// A quantised row is always one cell's, and its scale is shared, so it goes as a whole.
bool ScrubRow(const ggml_tensor& tensor, uint8_t* bytes, std::vector<float>& values) {
  const size_t row_bytes = ggml_row_size(tensor.type, tensor.ne[0]);
  if (tensor.type == GGML_TYPE_F32) {
    std::memcpy(values.data(), bytes, row_bytes);
  } else {
    ggml_get_type_traits(tensor.type)->to_float(bytes, values.data(), tensor.ne[0]);
  }
  bool changed = false;
  const size_t element_bytes = row_bytes / values.size();
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i])) continue;
    changed = true;
    if (ggml_is_quantized(tensor.type)) {
      std::memset(bytes, 0, row_bytes);
      break;
    }
    std::memset(bytes + i * element_bytes, 0, element_bytes);
  }
  return changed;
}

uint64_t ScrubTensor(ggml_tensor* tensor) {
  MESHNET_CHECK(ggml_is_contiguous(tensor));
  MESHNET_CHECK(tensor->type == GGML_TYPE_F32 || ggml_get_type_traits(tensor->type)->to_float);
  const size_t row_bytes = ggml_row_size(tensor->type, tensor->ne[0]);
  const auto rows = static_cast<size_t>(ggml_nrows(tensor));
  const size_t rows_at_once = std::max<size_t>(1, kBlockBytes / row_bytes);
  std::vector<uint8_t> block(rows_at_once * row_bytes);
  std::vector<float> values(static_cast<size_t>(tensor->ne[0]));
  uint64_t cleared = 0;
  for (size_t first = 0; first < rows; first += rows_at_once) {
    const size_t count = std::min(rows_at_once, rows - first);
    ggml_backend_tensor_get(tensor, block.data(), first * row_bytes, count * row_bytes);
    uint64_t changed = 0;
    for (size_t row = 0; row < count; ++row) changed += ScrubRow(*tensor, block.data() + row * row_bytes, values) ? 1 : 0;
    if (changed > 0) ggml_backend_tensor_set(tensor, block.data(), first * row_bytes, count * row_bytes);
    cleared += changed;
  }
  return cleared;
}

}  // namespace

uint64_t ScrubNonFinite(std::span<ggml_tensor* const> memory) {
  uint64_t cleared = 0;
  for (ggml_tensor* tensor : memory) cleared += ScrubTensor(tensor);
  return cleared;
}

}  // namespace meshnet
