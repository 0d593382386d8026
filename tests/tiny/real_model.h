// For the opt-in lanes: where the real models are.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace meshnet::tiny {

// The user's cache folder, of which models and their shards are in meshnet/.
inline std::string UserCache() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  return cache != nullptr && cache[0] == '/' ? cache : std::string(home == nullptr ? "" : home) + "/.cache";
}

// The path of a model that scripts/model has fetched; empty without MESHNET_REAL_MODELS=1, and when it is not there.
inline std::string RealModel(const std::string& name) {
  const char* wanted = std::getenv("MESHNET_REAL_MODELS");
  if (wanted == nullptr || std::string(wanted) != "1") return "";
  const std::string path = UserCache() + "/meshnet/models/" + name + ".gguf";
  return std::filesystem::exists(path) ? path : "";
}

}  // namespace meshnet::tiny
