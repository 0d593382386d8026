// Writes small random GGUF models that stock llama.cpp loads and runs: the same bytes for the same options, on every machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace meshnet::tiny {

enum class WeightType { kF32, kF16, kQ8_0 };

struct TinyModelOptions {
  std::string architecture = "llama";
  uint32_t layers = 4;
  uint32_t width = 64;           // embedding width; a multiple of 32 * heads
  uint32_t heads = 2;
  uint32_t heads_kv = 1;
  uint32_t feed_forward = 96;    // a multiple of 32
  uint32_t experts = 4;          // of architectures that have them; 2 are used per token
  uint32_t vocabulary = 256;     // token ids without a tokenizer; a tokenizer brings its own number
  uint32_t context = 1024;       // trained context
  uint32_t window = 16;          // sliding window of architectures that have one
  bool tied = false;             // no output.weight: the token embedding is used for it
  WeightType weights = WeightType::kF32;
  uint64_t seed = 1;
  // A ggml-vocab-*.gguf whose tokenizer is copied (with a small chat template); empty: no tokenizer, token ids only.
  std::string vocabulary_file;
  // With a tokenizer of type "llama" (SPM): only its first tokens, bytes and specials among them; 0: all.
  uint32_t vocabulary_max = 2048;
};

// Architectures that WriteTinyModel knows and that are cut. It also knows "mamba" (recurrent) and "jamba" (hybrid), which run whole.
std::vector<std::string> TinyArchitectures();

// kBadConfiguration: unknown architecture or sizes that do not go together. kFailure: the file cannot be written.
Status WriteTinyModel(const TinyModelOptions& options, const std::string& path);

// ggml-vocab-NAME.gguf of the pinned llama.cpp tree: "llama-spm", "qwen2", "phi-3", …
std::string VocabularyFile(const std::string& name);
// Options for a model that speaks text: tokenizer "llama-spm" (2048 tokens), a ChatML template.
TinyModelOptions TextModelOptions();

}  // namespace meshnet::tiny
