#include "protocol/prefix_digest.h"

#include <algorithm>

namespace meshnet {
namespace {

void AppendLittleEndian32(std::string& out, uint32_t value) {
  for (int shift = 0; shift < 32; shift += 8) out.push_back(static_cast<char>(value >> shift & 0xff));
}

}  // namespace

PrefixHasher::PrefixHasher(std::string_view cache_salt) {
  // The salt's length is hashed too, so that no salt and tokens can imitate another salt and tokens.
  std::string head = "meshnet.shard.v1 prefix";
  AppendLittleEndian32(head, static_cast<uint32_t>(cache_salt.size()));
  hash_.Update(head).Update(cache_salt);
}

void PrefixHasher::Append(std::span<const Token> tokens) {
  std::string bytes;
  bytes.reserve(tokens.size() * 4);
  for (Token token : tokens) AppendLittleEndian32(bytes, static_cast<uint32_t>(token));
  hash_.Update(bytes);
}

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
