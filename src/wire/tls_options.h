// Files of mutual TLS, all PEM. Empty paths mean plaintext, which is refused off loopback without `insecure`.
#pragma once

#include <string>

#include "base/status.h"

namespace meshnet {

struct TlsOptions {
  std::string certificate_path;  // --tls-cert
  std::string key_path;          // --tls-key
  std::string authority_path;    // --tls-ca: who may connect, and who we connect to
  bool insecure = false;         // --insecure

  bool enabled() const { return !certificate_path.empty(); }
};

}  // namespace meshnet
