#include "grammar/known_grammars.h"

#include <algorithm>

#include "base/sha256.h"

namespace meshnet::grammar {

Status KnownGrammars::Check(std::string_view text, const Bounds& bounds, uint32_t vocabulary_size, const IsToken& is_token) {
  constexpr size_t kKnownMax = 64;
  const Sha256Digest digest = Sha256().Update(text).Digest();
  if (std::ranges::find(taken_, digest) != taken_.end()) return OkStatus();
  if (Status status = CheckGrammar(text, bounds, vocabulary_size, is_token); !status.ok()) return status;
  taken_.push_back(digest);
  if (taken_.size() > kKnownMax) taken_.pop_front();
  return OkStatus();
}

}  // namespace meshnet::grammar
