// PEM files of mutual TLS into gRPC credentials, checked first so that a mistake is named where it was made and not at the other end.
#pragma once

#include <memory>
#include <string>

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include "base/status.h"
#include "wire/tls_options.h"

namespace meshnet {

// kBadConfiguration names the file: missing, unreadable, not PEM, key of another certificate, not yet valid, expired. All three files or none.
Status CheckTlsFiles(const TlsOptions& tls);

// Plaintext when TLS is not enabled.
Result<std::shared_ptr<grpc::ChannelCredentials>> ChannelCredentialsOf(const TlsOptions& tls);
// With TLS: only clients whose certificate the authority has issued.
Result<std::shared_ptr<grpc::ServerCredentials>> ServerCredentialsOf(const TlsOptions& tls);

}  // namespace meshnet
