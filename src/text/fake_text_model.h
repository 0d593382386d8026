// A TextModel without llama.cpp for tests of whatever stands on one. One printable ASCII byte is one token with that byte's number; any other id
// shows as `t123 `. Of the API it knows: model, messages, prompt (string, ids, list of either), max_tokens, n, seed, temperature, stop, stream,
// stream_options, prompt_cache_key; anything else is a 400 that names it, as in the real one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "text/text_model.h"

namespace meshnet {

struct FakeTextModelOptions {
  uint32_t vocabulary_size = 512;
  Token end_of_generation = 2;
  uint32_t training_context = 4096;
  bool has_tokenizer = true;
  std::string model_name = "fake";
};

std::unique_ptr<TextModel> CreateFakeTextModel(const FakeTextModelOptions& options);

}  // namespace meshnet
