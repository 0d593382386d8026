// A JSON schema's `pattern` (ECMAScript), rewritten into the part of it that llama.cpp turns into a grammar faithfully. Pure.
#pragma once

#include <string>
#include <string_view>

namespace meshnet::text {

struct PatternRewrite {
  bool ok = false;
  std::string pattern;  // anchored on both sides; classes only
  std::string fault;    // a sentence fragment: "uses a lookaround"
};

// llama.cpp accepts any string where it cannot express a pattern, takes an unanchored one for that, and lets a class such as `.` match the quote
// that ends the JSON string. The rewrite spells out the missing anchors, \d \w \s and identity escapes, and leaves out of every class what a JSON
// string cannot hold unescaped: what matches it always matches the original, and strings that need an escape are never produced.
PatternRewrite RewritePattern(std::string_view pattern);

}  // namespace meshnet::text
