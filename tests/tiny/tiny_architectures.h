// What each architecture demands of a model: its keys and its tensors (src/models/*.cpp of the pinned llama.cpp).
#pragma once

#include <string>
#include <vector>

#include "gguf/model_file.h"
#include "tiny/tiny_model.h"
#include "tiny/tiny_tensors.h"

namespace meshnet::tiny {

struct TinyModel {
  std::vector<gguf::MetadataEntry> metadata;  // without tokenizer and vocabulary size
  std::vector<TinyTensor> tensors;
};

// kBadConfiguration for an unknown architecture. `vocabulary` is the number of tokens.
Result<TinyModel> DescribeModel(const TinyModelOptions& options, uint32_t vocabulary);

}  // namespace meshnet::tiny
