// The keys that open the gateway, from a file: one a line, `name:key` or a key alone. Blank lines and lines that begin with # are skipped.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/status.h"

namespace meshnet::gateway {

// Immutable, so any thread may ask. Only digests of the keys are kept.
class ApiKeys {
 public:
  // Nobody needs a key.
  ApiKeys() = default;
  // kBadConfiguration names the file and line: unreadable, a name that cannot be shown, no key at all (which would lock everyone out).
  static Result<ApiKeys> Load(const std::string& path);

  bool required() const { return !keys_.empty(); }
  // The name of the key, "key-LINE" when it has none; nothing when it is unknown. The time it takes does not tell how close a guess was.
  std::optional<std::string> NameOf(std::string_view key) const;

 private:
  struct Key {
    std::string name;
    Sha256Digest digest;
  };
  std::vector<Key> keys_;
};

}  // namespace meshnet::gateway
