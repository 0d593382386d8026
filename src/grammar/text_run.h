// How much stack llama.cpp needs to tokenize a text. Several of its pre-tokenizers use std::regex, which recurses once for each character that one
// repetition matches: 314 bytes of stack each, so that 26,652 letters in a row end a thread with the usual 8 MiB. Pure.
#pragma once

#include <cstddef>
#include <string_view>

namespace meshnet::grammar {

// A text without a longer run may be tokenized on any thread.
inline constexpr size_t kRunOnAnyStack = 4096;

// Most characters that one repetition of a pre-tokenizer may match: either all blank or none, or words with blanks in between.
size_t LongestRun(std::string_view text);

}  // namespace meshnet::grammar
