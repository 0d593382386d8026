// The URL of a gateway as people type it. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace meshnet::cli {

inline constexpr uint16_t kGatewayPort = 8080;

struct Url {
  std::string scheme_and_authority;  // "http://127.0.0.1:8080"
  std::string path_prefix;           // without a slash at the end; often empty
};

// "http://127.0.0.1:8080/", "https://host/mesh"; a bare address is http on the gateway's port. Nothing for anything else.
std::optional<Url> ParseUrl(const std::string& text);

}  // namespace meshnet::cli
