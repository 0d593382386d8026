#include "differential/llama_cells.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <string_view>

#include "base/check.h"
#include "ggml-backend.h"
#include "llama-kv-cache-iswa.h"
#include "llama-kv-cache.h"
#include "llama-memory-hybrid.h"
#include "llama-memory-recurrent.h"

namespace meshnet::differential {
namespace {

constexpr float kLarge = 30000.0f;  // of what f16 holds as well

ggml_tensor* Find(const std::vector<ggml_tensor*>& tensors, std::string_view name) {
  const auto found = std::ranges::find_if(tensors, [&](const ggml_tensor* tensor) { return name == tensor->name; });
  MESHNET_CHECK(found != tensors.end());
  return *found;
}

}  // namespace

LlamaCells::LlamaCells(const LlamaEngine& engine) : engine_(engine) {
  llama_memory_i* memory = llama_get_memory(engine.parts().context.get());
  if (const auto* both = dynamic_cast<llama_kv_cache_iswa*>(memory)) {
    cells_ = both->get_base();
    window_ = both->get_swa();
  } else if (const auto* hybrid = dynamic_cast<llama_memory_hybrid*>(memory)) {
    cells_ = hybrid->get_mem_attn();
    states_ = hybrid->get_mem_recr();
  } else {
    cells_ = dynamic_cast<llama_kv_cache*>(memory);
    states_ = dynamic_cast<llama_memory_recurrent*>(memory);
  }
  MESHNET_CHECK(cells_ || states_);
  MESHNET_CHECK(engine.parts().settings.flash_attention);
}

int32_t LlamaCells::first(SequenceId sequence) const {
  return llama_memory_seq_pos_min(llama_get_memory(engine_.parts().context.get()), engine_.lane(sequence));
}

int32_t LlamaCells::last(SequenceId sequence) const {
  return llama_memory_seq_pos_max(llama_get_memory(engine_.parts().context.get()), engine_.lane(sequence));
}

std::string LlamaCells::Fault(SequenceId sequence, PastLen past) const {
  const llama_seq_id lane = engine_.lane(sequence);
  const auto end = static_cast<llama_pos>(past.value);
  if (states_) {
    const llama_pos at = states_->seq_pos_max(lane);
    if (at != end - 1) return "the recurrent state stands at position " + std::to_string(at);
  }
  for (const llama_kv_cache* cache : {cells_, window_}) {
    if (!cache) continue;
    std::multiset<llama_pos> held;
    const llama_kv_cells& cells = cache->get_cells(lane);
    for (uint32_t i = 0; i < cells.size(); ++i) {
      if (!cells.is_empty(i) && cells.seq_has(i, lane)) held.insert(cells.pos_get(i));
    }
    const std::string what = cache == window_ ? "the sliding window" : "attention";
    if (!held.empty() && *held.rbegin() >= end) return what + " holds position " + std::to_string(*held.rbegin());
    // The token at `end` sees what is less than a window away.
    const llama_pos begin = cache == window_ ? std::max(0, end - static_cast<llama_pos>(engine_.info().window_tokens) + 1) : 0;
    for (llama_pos position = begin; position < end; ++position) {
      const size_t count = held.count(position);
      if (count != 1) return what + " holds position " + std::to_string(position) + " " + std::to_string(count) + " times";
    }
  }
  return "";
}

void LlamaCells::FillRow(ggml_tensor* tensor, size_t offset, uint64_t& filled) {
  const auto width = static_cast<size_t>(tensor->ne[0]);
  const size_t bytes = ggml_row_size(tensor->type, tensor->ne[0]);
  row_.resize(bytes);
  pattern_.resize(bytes);
  values_.resize(width);
  for (size_t i = 0; i < width; ++i) values_[i] = i % 3 == 0 ? kLarge : i % 3 == 1 ? -kLarge : kLarge / 2;
  ggml_quantize_chunk(tensor->type, values_.data(), pattern_.data(), 0, 1, tensor->ne[0], nullptr);
  ggml_backend_tensor_get(tensor, row_.data(), offset, bytes);
  if (row_ == pattern_) return;
  if (tensor->type == GGML_TYPE_F32) {
    std::memcpy(values_.data(), row_.data(), bytes);
  } else {
    ggml_get_type_traits(tensor->type)->to_float(row_.data(), values_.data(), tensor->ne[0]);
  }
  if (!std::ranges::all_of(values_, [](float value) { return std::isfinite(value); })) return;
  ggml_backend_tensor_set(tensor, pattern_.data(), offset, bytes);
  ++filled;
}

uint64_t LlamaCells::FillFree() {
  uint64_t filled = 0;
  const std::vector<ggml_tensor*>& memory = engine_.parts().graph.memory;
  for (const llama_kv_cache* cache : {cells_, window_}) {
    if (!cache) continue;
    for (uint32_t layer : cache->get_layer_ids()) {
      ggml_tensor* keys = cache->get_k_storage(static_cast<int32_t>(layer));
      std::string name = keys->name;
      name.replace(name.rfind("k_l"), 1, "v");
      for (ggml_tensor* tensor : {keys, Find(memory, name)}) {
        for (uint32_t stream = 0; stream < cache->get_n_stream(); ++stream) {
          const llama_kv_cells& cells = cache->get_cells(static_cast<llama_seq_id>(stream));
          for (uint32_t i = 0; i < cells.size(); ++i) {
            if (cells.is_empty(i)) FillRow(tensor, stream * tensor->nb[2] + i * tensor->nb[1], filled);
          }
        }
      }
    }
  }
  if (!states_) return filled;
  for (const std::vector<ggml_tensor*>* tensors : {&states_->r_l, &states_->s_l}) {
    for (ggml_tensor* tensor : *tensors) {
      for (size_t i = 0; tensor && i < states_->cells.size(); ++i) {
        // With a source an empty one holds the zeros that the next owner starts from.
        if (states_->cells[i].is_empty() && states_->cells[i].src < 0) FillRow(tensor, i * tensor->nb[1], filled);
      }
    }
  }
  return filled;
}

uint32_t LlamaCells::window_cells() const { return window_ ? window_->get_size() : 0; }

}  // namespace meshnet::differential
