// The cut rules as data: one row per architecture whose cuts are certified bit-exact on the pinned llama.cpp, and reasons for some that
// are not. A row is written from the pinned source (src/models/*.cpp): every branch on the layer index, the layer count or the vocabulary
// size must be answered here or refused.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace meshnet::gguf {

// Raised whenever a row changes what a shard of it contains; a shard names the rules that made it.
inline constexpr uint32_t kRulesVersion = 1;

// Where the code takes the set of sliding-window layers from.
enum class WindowRule {
  kNone,     // it knows no window, or reads one and switches it off
  kPattern,  // "attention.sliding_window_pattern" as an array, else as a period, else the default period
  kArray,    // the same key, only as an array
};

// How a range without any window layer is written, since stock code aborts when it has a window but no layer that uses it.
enum class WindowlessRange {
  kRefuse,
  kZeroWindow,  // "attention.sliding_window" = 0 turns windows off and changes nothing else
};

// Behaviour that hangs on the layer count and that keys can pin down.
enum class Quirk {
  kNone,
  kDeepseek2Lite,  // 26, 27 or 48 layers: no query LoRA; 47 or 48: another gating default
  kMinicpmScale,   // the default residual scale is 1.4 / sqrt(layers)
};

struct ArchitectureRule {
  std::string_view name;
  uint32_t cut_step = 1;                          // cuts are multiples of it
  WindowRule window = WindowRule::kNone;
  uint32_t window_period = 0;                     // the code's default
  bool window_dense_first = false;                // the full layer is the first of a period, not the last
  WindowlessRange windowless = WindowlessRange::kRefuse;
  bool uneven_layers = false;                     // head counts and feed-forward widths may differ from layer to layer
  bool output_demanded = false;                   // stock code has no fallback for a missing output.weight
  bool scales_embedding = false;                  // has a default for "embedding_scale" other than none
  uint32_t positions_per_token = 1;               // 4: M-RoPE, for injected rows
  std::string_view boundary = "l_out";            // the graph's name for the rows that leave a layer
  Quirk quirk = Quirk::kNone;
  std::span<const uint32_t> special_lengths = {}; // layer counts at which the code changes behaviour: never a cut model's, nor a range's
  uint32_t layers_max = UINT32_MAX;               // larger models of the architecture have other tensors
};

// Null when the architecture is not certified.
const ArchitectureRule* FindArchitecture(std::string_view name);
std::span<const ArchitectureRule> CertifiedArchitectures();

// Why an architecture that is not certified is refused: a sentence without its end.
std::string RefusalReason(std::string_view name);

// The name of the tensor that holds the rows leaving local layer `layer` of a shard.
std::string BoundaryTensor(const ArchitectureRule& rule, uint32_t layer);

// Whether an array under `key` has one element per layer. A match by length would slice the 4-entry rope.dimension_sections of a 4-layer
// model too.
bool IsPerLayerKey(std::string_view key, std::string_view architecture);
// The array that injects image features into layers: harmless only while it is -1 everywhere.
bool IsDeepstackMapping(std::string_view key, std::string_view architecture);
// Whether an array under "ARCH.*" is known to have nothing to do with layers.
bool IsModelWideArray(std::string_view key, std::string_view architecture);

}  // namespace meshnet::gguf
