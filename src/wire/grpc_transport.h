// The gRPC settings that both ends of the shard protocol share (docs/protocol.md, Transport), and its log kept short.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace meshnet {

// Channel arguments for client and server alike: big HTTP/2 windows and frames, no bandwidth probe, keepalive, no retries behind our back.
std::vector<std::pair<std::string, int>> SharedTransportArguments();
// More for a channel: quick reconnects with new name look-ups, no proxy, its own connection.
std::vector<std::pair<std::string, int>> ClientTransportArguments();
// More for a server: tolerant of pings, bounded streams. The caller adds how long a handshake may take.
std::vector<std::pair<std::string, int>> ServerTransportArguments();

// gRPC logs each broken handshake; a port scan would fill a disk. From here on one line per kind and minute reaches stderr. Idempotent.
void QuietGrpcLog();

}  // namespace meshnet
