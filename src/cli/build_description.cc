#include "cli/build_description.h"

#include "build_commit.h"  // written by the build: MESHNET_COMMIT

namespace meshnet::cli {

std::string BuildVersion() { return MESHNET_VERSION; }

std::string BuildCommit() { return MESHNET_COMMIT; }

std::string BuildDescription() { return BuildVersion() + " (commit " + BuildCommit() + ", llama.cpp tree " MESHNET_LLAMA_TREE ")"; }

}  // namespace meshnet::cli
