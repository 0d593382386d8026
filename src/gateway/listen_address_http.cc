#include "gateway/listen_address_http.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <charconv>
#include <cstring>
#include <memory>

#include "base/loopback.h"

namespace meshnet::gateway {
namespace {

constexpr int kListenBacklog = 512;

Status Bad(const std::string& text, const std::string& why) {
  return BadConfiguration("cannot listen on \"" + text + "\": " + why);
}

std::string Print(const std::string& host, uint16_t port) {
  const bool bracketed = host.find(':') != std::string::npos;
  return (bracketed ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

// The socket's own address as text, with the port the system gave.
std::string BoundName(int socket) {
  sockaddr_storage storage{};
  socklen_t size = sizeof(storage);
  char host[NI_MAXHOST] = "", port[NI_MAXSERV] = "";
  auto* address = reinterpret_cast<sockaddr*>(&storage);
  if (getsockname(socket, address, &size) != 0) return "";
  if (getnameinfo(address, size, host, sizeof(host), port, sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) != 0) return "";
  return Print(host, static_cast<uint16_t>(std::atoi(port)));
}

}  // namespace

Result<ListenAddress> ParseListenAddress(const std::string& text) {
  ListenAddress address;
  std::string port;
  if (!text.empty() && text.front() == '[') {
    const size_t close = text.find(']');
    if (close == std::string::npos || close + 1 >= text.size() || text[close + 1] != ':') {
      return Bad(text, "an IPv6 address is written [ADDRESS]:PORT");
    }
    address.host = text.substr(1, close - 1);
    port = text.substr(close + 2);
    in6_addr parsed;
    // A zone such as %eth0 is left to the resolver.
    if (address.host.find('%') == std::string::npos && inet_pton(AF_INET6, address.host.c_str(), &parsed) != 1) {
      return Bad(text, "\"" + address.host + "\" is not an IPv6 address");
    }
  } else {
    const size_t colon = text.rfind(':');
    if (colon == std::string::npos) return Bad(text, "a port is missing; write HOST:PORT");
    address.host = text.substr(0, colon);
    port = text.substr(colon + 1);
    if (address.host.find(':') != std::string::npos) return Bad(text, "an IPv6 address is written [ADDRESS]:PORT");
  }
  if (address.host.empty()) return Bad(text, "a host is missing; write HOST:PORT, such as 127.0.0.1:8080");
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (error != std::errc() || end != port.data() + port.size() || number > 65535) {
    return Bad(text, "the port must be a number from 0 to 65535");
  }
  address.port = static_cast<uint16_t>(number);
  return address;
}

Result<BoundSocket> BindAndListen(const ListenAddress& address) {
  const std::string text = Print(address.host, address.port);
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (error != 0) return Bad(text, std::string("the host name does not resolve (") + gai_strerror(error) + ")");
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(found, &freeaddrinfo);
  const addrinfo* chosen = found;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    if (each->ai_family == AF_INET) {
      chosen = each;
      break;
    }
  }

  const int fd = ::socket(chosen->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return Bad(text, std::strerror(errno));
  const int on = 1, off = 0;
  // Restarting on the same port must not wait for old connections to time out; never SO_REUSEPORT, which would share a port that is taken.
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (chosen->ai_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  if (::bind(fd, chosen->ai_addr, chosen->ai_addrlen) != 0 || ::listen(fd, kListenBacklog) != 0) {
    const int cause = errno;
    ::close(fd);
    std::string why = std::strerror(cause);
    if (cause == EADDRINUSE) why += "; another process listens there, choose another port or stop it";
    if (cause == EACCES) why += "; ports below 1024 need rights that this user lacks";
    return Bad(text, why);
  }
  return BoundSocket{fd, BoundName(fd), IsLoopback(*chosen->ai_addr)};
}

void CloseSocket(int socket) { ::close(socket); }

}  // namespace meshnet::gateway
