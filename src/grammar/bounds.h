// Whether llama.cpp can be trusted with a grammar: it recurses into left-most rules without remembering where it has been, does not see every
// left recursion, and keeps one stack per way the text so far can be read. Gateway and last worker ask this one function, so what the one takes
// the other takes. Pure.
#pragma once

#include <string_view>

#include "base/status.h"
#include "grammar/syntax.h"

namespace meshnet::grammar {

struct Bounds {
  Limits text;
  uint32_t chain_max = 2000;           // rules that begin with each other: llama.cpp's recursion depth
  uint64_t visits_max = 1'000'000;     // its calls while it looks for left recursion
  size_t readings_max = 2048;          // stacks at once: each costs a pass over the vocabulary
  uint32_t probe_characters = 64;      // how far the worst text is followed
  uint64_t probe_work_max = 1'000'000; // and the effort that is spent on it
};

// kRefused: one sentence that begins with "the grammar" and never quotes it.
Status CheckGrammar(std::string_view text, const Bounds& bounds, uint32_t vocabulary_size, const IsToken& is_token);

}  // namespace meshnet::grammar
