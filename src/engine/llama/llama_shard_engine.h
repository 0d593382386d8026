// A shard on stock llama.cpp. With text/llama the only code that sees llama.h.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "engine/engine_options.h"

namespace meshnet {

// Loads the shard GGUF and makes its one bounded context. Errors: kBadModel (the file, or llama.cpp refuses it), kOutOfMemory (named before
// loading where it can be known), kRefused (not covered in this numerics mode), kBadConfiguration (an option).
Result<std::unique_ptr<Engine>> CreateLlamaShardEngine(const EngineOptions& options);

// One plain llama.cpp context on a whole model, with the same numerics settings: the reference of `meshnet verify`.
class ReferenceContext {
 public:
  virtual ~ReferenceContext() = default;
  virtual uint32_t vocabulary_size() const = 0;
  // Decodes one chunk at positions [past, past+n) of the only sequence and returns the logits of every row, `[n][vocabulary]`.
  virtual Result<HiddenState> Decode(std::span<const Token> tokens) = 0;
  virtual void Reset() = 0;
};
Result<std::unique_ptr<ReferenceContext>> CreateReferenceContext(const std::string& model_path, const EngineOptions& options);

}  // namespace meshnet
