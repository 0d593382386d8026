// A small certificate authority for mutual TLS between gateway and workers, as PEM files.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"

namespace meshnet::cli {

// Key pair and certificate of the authority; signs others. Keys are EC P-256.
class TlsAuthority {
 public:
  // Reads `folder`/ca.pem and ca.key, or makes them when neither is there. kBadConfiguration names a file that cannot be used.
  static Result<TlsAuthority> Open(const std::string& folder, uint32_t days);
  TlsAuthority(TlsAuthority&&) noexcept;
  ~TlsAuthority();

  // Writes `folder`/NAME.pem and NAME.key (mode 0600) where NAME is names[0]; all names are host names or addresses that the certificate stands
  // for, as server and as client. An existing pair is replaced.
  Status Issue(const std::vector<std::string>& names, uint32_t days) const;

 private:
  struct Impl;
  explicit TlsAuthority(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace meshnet::cli
