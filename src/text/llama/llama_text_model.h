// TextModel over llama.cpp's common and context-free server parts.
#pragma once

#include <memory>

#include "base/status.h"
#include "text/text_model.h"

namespace meshnet {

// Loads the vocabulary only. kBadModel names what the file lacks.
Result<std::unique_ptr<TextModel>> CreateLlamaTextModel(const TextModelOptions& options);

}  // namespace meshnet
