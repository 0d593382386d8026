#include "protocol/prefix_digest.h"

#include <algorithm>
#include <bit>

namespace meshnet {

// What is hashed is 32-bit little endian, and so is memory here.
static_assert(std::endian::native == std::endian::little && sizeof(Token) == 4);

PrefixHasher::PrefixHasher(std::string_view cache_salt) {
  // The salt's length is hashed too, so that no salt and tokens can imitate another salt and tokens.
  const uint32_t length = static_cast<uint32_t>(cache_salt.size());
  hash_.Update("meshnet.shard.v1 prefix").Update(std::as_bytes(std::span(&length, 1))).Update(cache_salt);
}

void PrefixHasher::Append(std::span<const Token> tokens) { hash_.Update(std::as_bytes(tokens)); }

PrefixDigest PrefixHasher::Digest() const {
  Sha256Digest whole = hash_.Digest();
  PrefixDigest digest;
  std::copy_n(whole.bytes.begin(), PrefixDigest::kSize, digest.bytes.begin());
  return digest;
}

PrefixDigest DigestOfPrefix(std::string_view cache_salt, std::span<const Token> tokens) {
  PrefixHasher hasher(cache_salt);
  hasher.Append(tokens);
  return hasher.Digest();
}

}  // namespace meshnet
