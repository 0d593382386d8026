// llama.cpp's grammar notation (GBNF) read into the same rules that its own parser makes, but bounded: a grammar comes from a client, and
// llama.cpp's parser recurses, multiplies repetitions and prints the whole text when it fails. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace meshnet::grammar {

struct Element {
  enum class Kind : uint8_t { kEnd, kAlternative, kRule, kCharacter, kCharacterNot, kRangeEnd, kCharacterMore, kAny, kToken, kTokenNot };
  Kind kind = Kind::kEnd;
  uint32_t value = 0;  // code point, token or rule
};

// Rules by number; each ends with kEnd, its alternatives are separated by kAlternative.
struct Rules {
  std::vector<std::vector<Element>> rules;
  uint32_t root = 0;
};

struct Limits {
  size_t text_bytes_max = 256 * 1024;
  uint32_t nesting_max = 128;            // parentheses inside each other
  size_t rules_max = 16384;              // those made by groups and repetitions included
  size_t elements_max = 512 * 1024;      // after repetitions are written out
  size_t name_bytes_max = 512;
  size_t token_bytes_max = 256;          // of one `<text>`: llama.cpp tokenizes it, and its tokenizer recurses
  uint64_t repetitions_max = 2000;       // llama.cpp's own MAX_REPETITION_THRESHOLD; it would drop an upper bound above it silently
};

// Whether `<text>` is one token of the vocabulary. Grammars may name tokens. Empty: nobody here can say, so any text passes.
using IsToken = std::function<bool(std::string_view text)>;

// kRefused says what was wrong and in which line, without quoting the grammar.
Result<Rules> ReadGrammar(std::string_view text, const Limits& limits, uint32_t vocabulary_size, const IsToken& is_token);

}  // namespace meshnet::grammar
