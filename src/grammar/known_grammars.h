// The grammars that were taken last. A grammar comes with each session that uses it, twice, and reading one can take long. One thread.
#pragma once

#include <cstdint>
#include <deque>
#include <string_view>

#include "base/ids.h"
#include "base/status.h"
#include "grammar/bounds.h"

namespace meshnet::grammar {

class KnownGrammars {
 public:
  // Ok at once for one of the last 64 that were taken; otherwise what CheckGrammar says. All other arguments are the same on each call.
  Status Check(std::string_view text, const Bounds& bounds, uint32_t vocabulary_size, const IsToken& is_token);

 private:
  std::deque<Sha256Digest> taken_;
};

}  // namespace meshnet::grammar
