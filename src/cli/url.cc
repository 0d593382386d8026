#include "cli/url.h"

#include "wire/address.h"

namespace meshnet::cli {

std::optional<Url> ParseUrl(const std::string& text) {
  std::string scheme = "http://";
  std::string rest = text;
  uint16_t default_port = kGatewayPort;
  size_t separator = text.find("://");
  if (separator != std::string::npos) {
    scheme = text.substr(0, separator + 3);
    if (scheme != "http://" && scheme != "https://") return std::nullopt;
    rest = text.substr(separator + 3);
    default_port = scheme == "http://" ? 80 : 443;
  }
  size_t slash = rest.find('/');
  std::string path = slash == std::string::npos ? "" : rest.substr(slash);
  Result<Address> address = ParseAddress(rest.substr(0, slash), default_port);
  if (!address.ok() || address->kind != Address::Kind::kTcp) return std::nullopt;
  while (!path.empty() && path.back() == '/') path.pop_back();
  return Url{scheme + address->Text(), path};
}

}  // namespace meshnet::cli
