// What this binary was built from.
#pragma once

#include <string>

namespace meshnet::cli {

// "0.1.0".
std::string BuildVersion();
// Commit of the working tree, with "+" when it had changes; "unknown" outside of git.
std::string BuildCommit();
// Version, commit and the llama.cpp tree.
std::string BuildDescription();

}  // namespace meshnet::cli
