// For the opt-in lanes: where the real models are, and a cache that outlives the test.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "process/process_bed.h"

namespace meshnet::process {

class RealModelBed : public ProcessBed {
 protected:
  // The model's path; the test must return when it is empty.
  std::string Model(const std::string& name) {
    const char* wanted = std::getenv("MESHNET_REAL_MODELS");
    const char* cache = std::getenv("XDG_CACHE_HOME");
    const char* home = std::getenv("HOME");
    if (wanted == nullptr || std::string(wanted) != "1") return "";
    real_cache_ = cache != nullptr && cache[0] == '/' ? cache : std::string(home == nullptr ? "" : home) + "/.cache";
    std::string path = real_cache_ + "/meshnet/models/" + name + ".gguf";
    return std::filesystem::exists(path) ? path : "";
  }
  // Shards and digests are kept beside the models: hashing and cutting them each time would be most of the work.
  StartOptions RealOptions() const {
    StartOptions options = Options();
    options.environment["XDG_CACHE_HOME"] = real_cache_;
    return options;
  }

  std::string real_cache_;
};

#define MESHNET_REAL_MODEL(variable, name) \
  std::string variable = Model(name);      \
  if (variable.empty()) GTEST_SKIP() << "how to get it: scripts/model " name " (and run with MESHNET_REAL_MODELS=1)"

}  // namespace meshnet::process
