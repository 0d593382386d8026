// Where a worker listens or is found, as people type it: "host:port", "[::1]:port", "::1", "localhost", "unix:/path". Pure: nothing is resolved.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace meshnet {

inline constexpr uint16_t kWorkerPort = 7070;

struct Address {
  enum class Kind { kTcp, kUnix };
  Kind kind = Kind::kTcp;
  std::string host;  // kTcp: a name or a literal without brackets
  uint16_t port = 0;
  std::string path;  // kUnix

  // Can be pasted back: ParseAddress(Text()) is this address.
  std::string Text() const;
  // "localhost", 127.0.0.0/8, ::1 and sockets in the file system. Any other name counts as reachable from outside.
  bool is_loopback() const;
  friend bool operator==(const Address&, const Address&) = default;
};

// kUsage quotes `text` and says what is wrong with it. A missing port is `default_port`.
Result<Address> ParseAddress(std::string_view text, uint16_t default_port);

}  // namespace meshnet
