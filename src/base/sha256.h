// SHA-256 over OpenSSL: the hash that model hubs publish. One object per digest; not thread-safe; copyable to fork a prefix.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "base/check.h"
#include "base/ids.h"

namespace meshnet {

class Sha256 {
 public:
  Sha256();
  Sha256(const Sha256& other);
  Sha256& operator=(const Sha256& other);
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;
  ~Sha256();

  Sha256& Update(std::span<const std::byte> data);
  Sha256& Update(std::string_view data);
  // The digest of all bytes so far; the object goes on and may be updated again.
  Sha256Digest Digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace meshnet
