// SHA-256 over OpenSSL: the hash that model hubs publish. One object per digest; not thread-safe; a plain value that is copied to fork a prefix
// and allocates nothing, because every decode step asks for a digest.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "base/ids.h"

namespace meshnet {

class Sha256 {
 public:
  Sha256();

  Sha256& Update(std::span<const std::byte> data);
  Sha256& Update(std::string_view data);
  // The digest of all bytes so far; the object goes on and may be updated again.
  Sha256Digest Digest() const;

 private:
  static constexpr size_t kStateBytes = 112;
  alignas(8) unsigned char state_[kStateBytes];  // OpenSSL's SHA256_CTX, whose header stays out of this one
};

}  // namespace meshnet
