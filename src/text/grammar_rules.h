// A GBNF grammar as rules, read the way llama.cpp v0.5.0 reads it (src/llama-grammar.cpp), but without recursion and within bounds. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace meshnet::text {

// Not above those of the last worker (engine/llama/grammar_syntax.h), which also follows how many readings a text may have.
struct GrammarBounds {
  size_t bytes_max = 256u << 10;
  size_t depth_max = 128;            // parentheses
  size_t elements_max = 400'000;     // after repetitions are written out
  size_t repetitions_max = 2000;     // llama.cpp's own limit; above it, it would drop an upper bound silently
  size_t chain_max = 1000;           // rules that begin with each other: llama.cpp recurses along them
  uint64_t visits_max = 2'000'000;   // steps of llama.cpp's search for left recursion
  uint64_t stacks_max = 50'000;      // parse stacks alive at once right after a rule begins
};

struct GrammarRules {
  enum class Kind : uint8_t { kTerminal, kReference, kAlternative };
  // A literal or a character class is one terminal: only what may begin a rule matters here.
  struct Element {
    Kind kind = Kind::kTerminal;
    uint32_t value = 0;  // kReference: a symbol
  };
  std::vector<std::vector<Element>> rules;  // by symbol
  std::vector<std::string> names;           // by symbol; empty: made up for a group or a repetition
  std::vector<std::string> token_texts;     // `<text>` terminals
};

// Nothing, or a sentence fragment about what is wrong: "has no rule named root". `rules` is complete only without a fault.
std::optional<std::string> ReadGrammar(std::string_view grammar, uint32_t vocabulary_size, const GrammarBounds& bounds, GrammarRules* rules);

}  // namespace meshnet::text
