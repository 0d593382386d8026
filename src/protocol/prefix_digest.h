// Identity of a token prefix: the first 16 bytes of SHA-256 over (domain tag, cache salt, token ids as 32-bit little endian).
// It does not depend on how the prefix was chunked, so equal length never passes for equal prefix (docs/protocol.md).
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/ids.h"
#include "base/sha256.h"

namespace meshnet {

// Grows with a token log; copy it to remember an earlier length. Not thread-safe.
class PrefixHasher {
 public:
  explicit PrefixHasher(std::string_view cache_salt);

  void Append(std::span<const Token> tokens);
  // Of everything appended so far.
  PrefixDigest Digest() const;

 private:
  Sha256 hash_;
};

PrefixDigest DigestOfPrefix(std::string_view cache_salt, std::span<const Token> tokens);

}  // namespace meshnet
