#include "gateway/api_keys_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/sha256.h"

namespace meshnet::gateway {
namespace {

constexpr size_t kKeysMax = 10000;
constexpr size_t kLineBytesMax = 1024;
constexpr size_t kNameBytesMax = 64;

Sha256Digest DigestOf(std::string_view key) { return Sha256().Update(key).Digest(); }

std::string_view Trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

// Names reach logs and labels.
bool IsName(std::string_view name) {
  if (name.empty() || name.size() > kNameBytesMax) return false;
  for (char c : name) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
    if (!plain) return false;
  }
  return true;
}

}  // namespace

Result<ApiKeys> ApiKeys::Load(const std::string& path) {
  std::ifstream file(path);
  if (!file) return BadConfiguration("cannot read the API key file \"" + path + "\": " + std::strerror(errno));
  ApiKeys keys;
  std::string line;
  for (size_t number = 1; std::getline(file, line); ++number) {
    const std::string where = "API key file \"" + path + "\", line " + std::to_string(number) + ": ";
    if (line.size() > kLineBytesMax) return BadConfiguration(where + "longer than " + std::to_string(kLineBytesMax) + " bytes");
    const std::string_view text = Trim(line);
    if (text.empty() || text.front() == '#') continue;
    std::string name = "key-" + std::to_string(number);
    std::string_view key = text;
    if (const size_t colon = text.find(':'); colon != std::string_view::npos) {
      name = std::string(Trim(text.substr(0, colon)));
      key = Trim(text.substr(colon + 1));
      if (!IsName(name)) return BadConfiguration(where + "the name before ':' may hold letters, digits, '.', '_' and '-', at most 64");
    }
    if (key.empty()) return BadConfiguration(where + "the key after ':' is empty");
    if (keys.keys_.size() == kKeysMax) return BadConfiguration(where + "more than " + std::to_string(kKeysMax) + " keys");
    keys.keys_.push_back({std::move(name), DigestOf(key)});
  }
  if (file.bad()) return BadConfiguration("cannot read the API key file \"" + path + "\"");
  if (keys.keys_.empty()) return BadConfiguration("the API key file \"" + path + "\" holds no key");
  return keys;
}

std::optional<std::string> ApiKeys::NameOf(std::string_view key) const {
  const Sha256Digest given = DigestOf(key);
  const Key* found = nullptr;
  for (const Key& each : keys_) {
    uint8_t difference = 0;
    for (size_t i = 0; i < given.bytes.size(); ++i) difference |= static_cast<uint8_t>(given.bytes[i] ^ each.digest.bytes[i]);
    if (difference == 0) found = &each;
  }
  if (found == nullptr) return std::nullopt;
  return found->name;
}

}  // namespace meshnet::gateway
