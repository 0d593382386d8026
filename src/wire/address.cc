#include "wire/address.h"

#include <arpa/inet.h>
#include <sys/un.h>

#include <algorithm>
#include <optional>

#include "base/loopback.h"
#include "wire/clean_text.h"

namespace meshnet {
namespace {

constexpr std::string_view kUnixScheme = "unix:";

Status Bad(std::string_view text, const std::string& why) {
  return Status(StatusCode::kUsage, CleanText("address \"" + std::string(text.substr(0, 300)) + "\": " + why, 1000));
}

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

bool IsIpv4(const std::string& host) {
  in_addr parsed;
  return inet_pton(AF_INET, host.c_str(), &parsed) == 1;
}

// A zone ("fe80::1%eth0") is allowed behind the literal.
bool IsIpv6(const std::string& host) {
  in6_addr parsed;
  size_t percent = host.find('%');
  if (percent != std::string::npos && (percent + 1 == host.size() || host.find_first_of("%/[] ", percent + 1) != std::string::npos)) return false;
  return inet_pton(AF_INET6, host.substr(0, percent).c_str(), &parsed) == 1;
}

std::optional<uint16_t> ParsePort(std::string_view text) {
  if (text.empty() || text.size() > 5 || !std::all_of(text.begin(), text.end(), IsDigit)) return std::nullopt;
  uint32_t port = 0;
  for (char c : text) port = port * 10 + static_cast<uint32_t>(c - '0');
  if (port > 65535) return std::nullopt;
  return static_cast<uint16_t>(port);
}

bool IsHostName(const std::string& host) {
  if (host.empty() || host.size() > 253 || host.front() == '-' || host.front() == '.') return false;
  return std::all_of(host.begin(), host.end(), [](char c) {
    return IsDigit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '.' || c == '_';
  });
}

Result<Address> ParseUnix(std::string_view text) {
  std::string_view path = text.substr(kUnixScheme.size());
  if (path.starts_with("///")) path.remove_prefix(2);  // the URI spelling unix:///path
  if (path.empty() || path.find('\0') != std::string_view::npos) return Bad(text, "a path must follow \"unix:\"");
  if (path.size() >= sizeof(sockaddr_un::sun_path)) {
    return Bad(text, "the path is longer than the " + std::to_string(sizeof(sockaddr_un::sun_path) - 1) + " bytes that a socket can have");
  }
  Address address;
  address.kind = Address::Kind::kUnix;
  address.path = std::string(path);
  return address;
}

}  // namespace

std::string Address::Text() const {
  if (kind == Kind::kUnix) return std::string(kUnixScheme) + path;
  bool brackets = host.find(':') != std::string::npos;
  return (brackets ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

bool Address::is_loopback() const {
  if (kind == Kind::kUnix || host == "localhost") return true;
  in_addr v4;
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return IsLoopback(v4);
  in6_addr v6;
  return inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IsLoopback(v6);
}

Result<Address> ParseAddress(std::string_view text, uint16_t default_port) {
  if (text.starts_with(kUnixScheme)) return ParseUnix(text);
  if (text.empty()) return Bad(text, "empty; write HOST:PORT");

  Address address;
  address.port = default_port;
  std::string_view port_text;
  bool has_port = false;
  auto colons = std::count(text.begin(), text.end(), ':');
  if (text.front() == '[') {
    size_t close = text.find(']');
    if (close == std::string_view::npos) return Bad(text, "\"[\" is not closed; write [::1]:PORT");
    address.host = std::string(text.substr(1, close - 1));
    if (!IsIpv6(address.host)) return Bad(text, "what stands in brackets is no IPv6 address");
    std::string_view rest = text.substr(close + 1);
    if (!rest.empty()) {
      if (rest.front() != ':') return Bad(text, "only :PORT may follow \"]\"");
      port_text = rest.substr(1);
      has_port = true;
    }
  } else if (colons > 1) {
    // The first colon of an IPv6 address is not a port separator: without brackets the whole text is the host.
    address.host = std::string(text);
    if (!IsIpv6(address.host)) return Bad(text, "neither HOST:PORT nor an IPv6 address; write [IPV6]:PORT");
  } else {
    size_t colon = text.find(':');
    address.host = std::string(text.substr(0, colon));
    if (colon != std::string_view::npos) {
      port_text = text.substr(colon + 1);
      has_port = true;
    }
    if (address.host.empty()) return Bad(text, "no host before \":\"; write 127.0.0.1" + std::string(text));
    bool numbers = std::all_of(address.host.begin(), address.host.end(), [](char c) { return IsDigit(c) || c == '.'; });
    if (numbers && !has_port && address.host.find('.') == std::string::npos) return Bad(text, "no host; write 127.0.0.1:" + address.host);
    if (numbers ? !IsIpv4(address.host) : !IsHostName(address.host)) return Bad(text, "\"" + address.host + "\" is no host name or IP address");
  }
  if (has_port) {
    std::optional<uint16_t> port = ParsePort(port_text);
    if (!port) return Bad(text, "the port must be a number from 0 to 65535");
    address.port = *port;
  }
  return address;
}

}  // namespace meshnet
