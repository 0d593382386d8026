#include "base/sha256.h"

#include <openssl/evp.h>

namespace meshnet {

struct Sha256::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  MESHNET_CHECK(state_->context && EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) == 1);
}

Sha256::Sha256(const Sha256& other) : state_(std::make_unique<State>()) {
  MESHNET_CHECK(EVP_MD_CTX_copy_ex(state_->context, other.state_->context) == 1);
}

Sha256& Sha256::operator=(const Sha256& other) {
  if (this != &other) *this = Sha256(other);
  return *this;
}

Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;
Sha256::~Sha256() = default;

Sha256& Sha256::Update(std::span<const std::byte> data) {
  MESHNET_CHECK(EVP_DigestUpdate(state_->context, data.data(), data.size()) == 1);
  return *this;
}

Sha256& Sha256::Update(std::string_view data) { return Update(std::as_bytes(std::span(data))); }

Sha256Digest Sha256::Digest() const {
  State copy;
  MESHNET_CHECK(EVP_MD_CTX_copy_ex(copy.context, state_->context) == 1);
  Sha256Digest digest;
  unsigned length = 0;
  MESHNET_CHECK(EVP_DigestFinal_ex(copy.context, digest.bytes.data(), &length) == 1 && length == Sha256Digest::kSize);
  return digest;
}

}  // namespace meshnet
