// Prompts for proving and measuring: always the same, different from each other. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"

namespace meshnet::cli {

// `text` as given for index 0 (a built-in one when empty), and a variant of it for each further index.
std::string TestPrompt(const std::string& text, uint32_t index);

// `count` token ids below `vocabulary_size`; another list for each index.
std::vector<Token> TestTokens(uint32_t count, uint32_t index, uint32_t vocabulary_size);

}  // namespace meshnet::cli
