// llama.cpp's grammar notation (GBNF) read into the same rules that its own parser makes, but bounded: a grammar comes from a client, and
// llama.cpp's parser recurses, multiplies repetitions and prints the whole text when it fails. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace meshnet {

struct GrammarElement {
  enum class Kind : uint8_t { kEnd, kAlternative, kRule, kCharacter, kCharacterNot, kRangeEnd, kCharacterMore, kAny, kToken, kTokenNot };
  Kind kind = Kind::kEnd;
  uint32_t value = 0;  // code point, token or rule
};

// Rules by number; each ends with kEnd, its alternatives are separated by kAlternative.
struct GrammarRules {
  std::vector<std::vector<GrammarElement>> rules;
  uint32_t root = 0;
};

struct GrammarLimits {
  size_t text_bytes_max = 256 * 1024;
  uint32_t nesting_max = 128;            // parentheses inside each other
  size_t rules_max = 16384;              // those made by groups and repetitions included
  size_t elements_max = 512 * 1024;      // after repetitions are written out
  size_t name_bytes_max = 512;
  uint64_t repetitions_max = 2000;       // llama.cpp's own MAX_REPETITION_THRESHOLD
};

// Whether `<text>` is one token of the vocabulary. Grammars may name tokens.
using IsToken = std::function<bool(std::string_view text)>;

// kRefused says what was wrong and at which byte, without quoting the grammar.
Result<GrammarRules> ReadGrammar(std::string_view text, const GrammarLimits& limits, const IsToken& is_token);

}  // namespace meshnet
