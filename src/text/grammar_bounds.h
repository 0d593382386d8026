// Says why llama.cpp v0.5.0 would refuse a GBNF grammar, crash on it or never end. Pure. Only what passes here may reach llama.cpp: its parser
// prints a bad grammar, which is a user's text, to stderr, nests on the stack, searches left recursion in exponential time and loops for ever
// on `{5,3}`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar_rules.h"

namespace meshnet::text {

struct GrammarReport {
  std::optional<std::string> fault;        // a sentence fragment: "has no rule named root"
  std::vector<std::string> token_texts;    // `<text>` terminals: each must be exactly one token of the vocabulary
};

// `vocabulary_size` bounds `<[id]>` terminals.
GrammarReport CheckGrammar(std::string_view grammar, uint32_t vocabulary_size, const GrammarBounds& bounds);

}  // namespace meshnet::text
