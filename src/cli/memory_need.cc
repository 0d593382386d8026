#include "cli/memory_need.h"

#include <algorithm>
#include <optional>

#include "cli/report.h"
#include "cli/system_memory.h"

namespace meshnet::cli {
namespace {

constexpr uint64_t kContextOverhead = 16u << 20;

}  // namespace

MemoryNeed NeedOf(const ShardSize& shard, const EngineSettings& settings, const plan::KvEstimate& kv) {
  const bool has_logits = shard.range.begin == 0 || shard.range.end == shard.layer_count;
  const uint64_t activations = uint64_t{settings.ubatch_rows} * shard.boundary_width * 8;
  const uint64_t logits = has_logits ? uint64_t{settings.output_rows} * shard.vocabulary_size * 2 : 0;
  // The mask, f16 for flash attention; without it f32, and each head's scores (llama-graph.cpp of v0.5.0).
  const uint64_t attention = settings.ubatch_rows * kv.cells * (settings.flash_attention ? 2 : 4 + 4 * uint64_t{kv.heads});
  MemoryNeed need;
  need.hole_bytes = shard.hole_bytes;
  need.weight_bytes = shard.tensor_bytes - std::min(shard.tensor_bytes, shard.hole_bytes);
  need.kv_bytes = kv.bytes;
  need.kv_bytes_per_token = kv.bytes_per_token;
  need.compute_bytes = (activations + logits) * sizeof(float) + attention + kContextOverhead;
  return need;
}

Status CheckMemory(const std::string& what, const std::vector<MemoryNeed>& needs) {
  Result<std::optional<uint64_t>> readable = AvailableMemory();
  if (!readable.ok()) return readable.status();
  const std::optional<uint64_t>& available = *readable;
  uint64_t weights = 0, kv = 0, total = 0;
  for (const MemoryNeed& need : needs) {
    weights += need.weight_bytes + need.hole_bytes;
    kv += need.kv_bytes;
    total += need.total();
  }
  if (!available || total <= *available) return OkStatus();
  return OutOfMemory(what + " need " + HumanBytes(total) + " (weights " + HumanBytes(weights) + ", KV " + HumanBytes(kv) + ", compute " +
                     HumanBytes(total - weights - kv) + "), available are " + HumanBytes(*available) +
                     "; lower MESHNET_HOT_KV_BUDGET_TOKENS or -c, or use more machines");
}

}  // namespace meshnet::cli
