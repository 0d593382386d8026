// One plain llama.cpp context on a whole model, driven as a batch server drives it: what `meshnet bench` compares with. It shares nothing with
// the shard engine but the settings.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "engine/engine_options.h"

namespace meshnet {

// Not thread-safe. Sequences are [0, options.sessions_max).
class PlainContext {
 public:
  virtual ~PlainContext() = default;
  virtual uint32_t vocabulary_size() const = 0;
  // Decodes a whole prompt into an empty sequence, in micro-batches, and returns the likeliest next token.
  virtual Result<Token> Prefill(SequenceId sequence, std::span<const Token> prompt) = 0;
  // One token for each of the sequences [0, tokens.size()) in one call; returns each one's likeliest next token.
  virtual Result<std::vector<Token>> Decode(std::span<const Token> tokens) = 0;
  // Empties every sequence.
  virtual void Reset() = 0;
};

// Errors as CreateReferenceContext.
Result<std::unique_ptr<PlainContext>> CreatePlainContext(const std::string& model_path, const EngineOptions& options);

}  // namespace meshnet
