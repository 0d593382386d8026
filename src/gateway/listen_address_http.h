// Where the gateway listens: parsing "host:port", binding it, and printing it so that it can be pasted back.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace meshnet::gateway {

struct ListenAddress {
  std::string host;  // without brackets
  uint16_t port = 0;
};

// "127.0.0.1:8080", "localhost:0", "[::1]:8080". kBadConfiguration quotes what was given and says what is wrong with it.
Result<ListenAddress> ParseListenAddress(const std::string& text);

// A bound and listening socket, non-blocking; owned by whoever gets it.
struct BoundSocket {
  int socket = -1;
  std::string address;      // "127.0.0.1:8080", "[::1]:8080": the real port
  bool loopback = false;    // only this machine reaches it
};

// Resolves and binds; a name with several addresses takes the first IPv4 one, and never another when that one is taken.
// kBadConfiguration names the address and the cause.
Result<BoundSocket> BindAndListen(const ListenAddress& address);
void CloseSocket(int socket);

}  // namespace meshnet::gateway
