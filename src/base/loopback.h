// Whether an address reaches only this machine: what decides if plaintext and servers without keys are allowed.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace meshnet {

inline bool IsLoopback(const in_addr& address) { return ntohl(address.s_addr) >> 24 == 127; }

// IPv4 addresses written as IPv6 included.
inline bool IsLoopback(const in6_addr& address) {
  return IN6_IS_ADDR_LOOPBACK(&address) || (IN6_IS_ADDR_V4MAPPED(&address) && address.s6_addr[12] == 127);
}

// Of an IPv4 or IPv6 socket.
inline bool IsLoopback(const sockaddr& address) {
  return address.sa_family == AF_INET ? IsLoopback(reinterpret_cast<const sockaddr_in&>(address).sin_addr)
                                      : IsLoopback(reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

}  // namespace meshnet
