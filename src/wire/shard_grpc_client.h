// A ShardLink over gRPC: one channel, one long Forward stream, steps coalesced per message; reconnects by itself.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "protocol/shard_link.h"
#include "wire/tls_options.h"

namespace meshnet {

// `address`: "host:port", "[::1]:port", "::1" forms of docs, or "unix:/path". Does not wait for the peer. kBadConfiguration quotes a bad
// address or names a bad TLS file.
Result<std::unique_ptr<ShardLink>> ConnectShard(const std::string& address, const TlsOptions& tls);

}  // namespace meshnet
