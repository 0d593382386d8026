#include "plan/memory_estimate.h"

#include <algorithm>
#include <array>

#include "gguf/ggml_types.h"
#include "gguf/gguf_writer.h"

namespace meshnet::plan {
namespace {

constexpr uint64_t kCellsAlignment = 256;  // llama.cpp rounds the cells of a cache up to it
constexpr uint64_t kSequencesMax = 256;    // LLAMA_MAX_SEQ

// The shape of the caches that llama_init_from_model makes (llama-context.cpp, llama-kv-cache-iswa.cpp).
struct CacheLayout {
  uint64_t streams = 1;          // one per sequence when partitioned, else one for all
  uint64_t cells = 0;            // of a stream, full attention
  uint64_t window_cells = 0;     // of a stream, sliding window
};

CacheLayout LayOut(const KvSettings& settings, uint32_t window_tokens) {
  CacheLayout layout;
  const uint64_t wanted = static_cast<uint64_t>(settings.sessions) * settings.context_tokens;
  const bool partitioned = wanted <= settings.budget_tokens;
  uint64_t window_sequences = settings.sessions;
  if (partitioned) {
    layout.streams = settings.sessions;
    layout.cells = gguf::Aligned(gguf::Aligned(wanted, kCellsAlignment) / settings.sessions, kCellsAlignment);
    window_sequences = 1;
  } else {
    layout.cells = gguf::Aligned(settings.budget_tokens, kCellsAlignment);
  }
  const uint64_t needed = static_cast<uint64_t>(window_tokens) * window_sequences + settings.ubatch_tokens;
  layout.window_cells = gguf::Aligned(std::min(layout.cells, needed), kCellsAlignment);
  return layout;
}

Status CheckSettings(const gguf::ModelShape& shape, LayerRange range, const KvSettings& settings) {
  if (settings.sessions == 0 || settings.sessions > kSequencesMax) {
    return BadConfiguration("sessions: " + std::to_string(settings.sessions) + " is not within 1 to " + std::to_string(kSequencesMax));
  }
  if (settings.context_tokens == 0) return BadConfiguration("context tokens: 0 leaves no room for a token");
  if (settings.budget_tokens < settings.context_tokens) {
    return BadConfiguration("budget tokens: " + std::to_string(settings.budget_tokens) + " is less than the " +
                            std::to_string(settings.context_tokens) + " of one session's context");
  }
  if (settings.ubatch_tokens == 0) return BadConfiguration("micro-batch: 0 tokens cannot be computed");
  if (range.empty() || range.end > shape.layers.size()) {
    return BadConfiguration("range " + range.Text() + " is no range of " + std::to_string(shape.layers.size()) + " layers");
  }
  return OkStatus();
}

}  // namespace

Result<KvEstimate> EstimateKv(const gguf::ModelShape& shape, LayerRange range, const KvSettings& settings) {
  if (Status status = CheckSettings(shape, range, settings); !status.ok()) return status;
  const CacheLayout layout = LayOut(settings, shape.window_tokens);
  KvEstimate estimate;
  for (uint32_t i = range.begin; i < range.end; ++i) {
    const gguf::LayerShape& layer = shape.layers[i];
    if (layer.kind == gguf::LayerKind::kNone || layer.kind == gguf::LayerKind::kRecurrent) continue;
    Result<uint64_t> key = RowBytes(settings.type_k, layer.key_elements);
    if (!key.ok()) return key.status();
    Result<uint64_t> value = RowBytes(settings.type_v, layer.value_elements);
    if (!value.ok()) return value.status();
    const bool windowed = layer.kind == gguf::LayerKind::kWindowAttention;
    if (!windowed) estimate.bytes_per_token += *key + *value;
    estimate.cells = std::max(estimate.cells, windowed ? layout.window_cells : layout.cells);
    estimate.heads = std::max(estimate.heads, layer.heads);
    estimate.bytes += layout.streams * (windowed ? layout.window_cells : layout.cells) * (*key + *value);
  }
  return estimate;
}

Result<uint64_t> RowBytes(const std::string& type, uint64_t elements) {
  const gguf::GgmlType* known = gguf::FindGgmlType(std::string_view(type));
  if (known == nullptr) return BadConfiguration("\"" + type + "\" is no tensor type of llama.cpp");
  if (elements % known->block_elements != 0) {
    return BadConfiguration("type " + type + " stores blocks of " + std::to_string(known->block_elements) + " values, and a row of " +
                            std::to_string(elements) + " is not a whole number of them; choose f16 or bf16");
  }
  return elements / known->block_elements * known->block_bytes;
}

}  // namespace meshnet::plan
