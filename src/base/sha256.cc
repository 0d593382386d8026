// OpenSSL's plain functions, which it calls deprecated in favour of EVP: EVP allocates for every copy and every digest.
#define OPENSSL_SUPPRESS_DEPRECATED
#include "base/sha256.h"

#include <openssl/sha.h>

#include "base/check.h"

namespace meshnet {
namespace {

SHA256_CTX* ContextIn(unsigned char* state) { return reinterpret_cast<SHA256_CTX*>(state); }

}  // namespace

Sha256::Sha256() {
  static_assert(sizeof(SHA256_CTX) == kStateBytes && alignof(SHA256_CTX) <= 8);
  MESHNET_CHECK(SHA256_Init(ContextIn(state_)) == 1);
}

Sha256& Sha256::Update(std::span<const std::byte> data) {
  MESHNET_CHECK(SHA256_Update(ContextIn(state_), data.data(), data.size()) == 1);
  return *this;
}

Sha256& Sha256::Update(std::string_view data) { return Update(std::as_bytes(std::span(data))); }

Sha256Digest Sha256::Digest() const {
  Sha256 copy = *this;
  Sha256Digest digest;
  MESHNET_CHECK(SHA256_Final(digest.bytes.data(), ContextIn(copy.state_)) == 1);
  return digest;
}

}  // namespace meshnet
