// The files of mutual TLS between gateway and workers, as flags.
#pragma once

#include "cli/arguments.h"
#include "wire/tls_options.h"

namespace meshnet::cli {

inline void AddTlsFlags(Arguments& arguments, TlsOptions* tls) {
  arguments.Text("--tls-cert", &tls->certificate_path, "certificate for mutual TLS between gateway and workers (PEM)");
  arguments.Text("--tls-key", &tls->key_path, "its private key (PEM)");
  arguments.Text("--tls-ca", &tls->authority_path, "authority that signed the other side's certificate (PEM)");
}

}  // namespace meshnet::cli
