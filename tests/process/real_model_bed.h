// For the opt-in lanes over processes: real models, and a cache that outlives the test.
#pragma once

#include <string>

#include "process/process_bed.h"
#include "tiny/real_model.h"

namespace meshnet::process {

class RealModelBed : public ProcessBed {
 protected:
  // The model's path; the test must return when it is empty.
  std::string Model(const std::string& name) { return tiny::RealModel(name); }
  // Shards and digests are kept beside the models: hashing and cutting them each time would be most of the work.
  StartOptions RealOptions() const {
    StartOptions options = Options();
    options.environment["XDG_CACHE_HOME"] = tiny::UserCache();
    return options;
  }
};

#define MESHNET_REAL_MODEL(variable, name) \
  std::string variable = Model(name);      \
  if (variable.empty()) GTEST_SKIP() << "how to get it: scripts/model " name " (and run with MESHNET_REAL_MODELS=1)"

}  // namespace meshnet::process
