// A ShardLink over gRPC: one channel, one long Forward stream, steps coalesced per message; reconnects by itself.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "protocol/shard_link.h"
#include "wire/tls_options.h"

namespace meshnet {

// Steps in flight on one link; beyond it a step is refused with kCreditExceeded and was not sent.
inline constexpr size_t kStepsInFlightMax = 8192;

// `address`: "host:port", "[::1]:port", "::1" forms of docs, or "unix:/path". Does not wait for the peer: calls fail at once while it cannot be
// reached, and it is tried again at least every second, its name looked up anew. kUsage quotes a bad address, kBadConfiguration names a bad TLS
// file, kRefused plaintext off loopback without `insecure`.
Result<std::unique_ptr<ShardLink>> ConnectShard(const std::string& address, const TlsOptions& tls);

}  // namespace meshnet
