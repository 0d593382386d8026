// Asserts inside llama.cpp end the process, so a shard is run once in a child process before it is served.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine_options.h"

namespace meshnet::cli {

// In the child: loads the shard with a small KV, runs one chunk and one decode step, and says what went wrong.
Status ProbeShard(const EngineOptions& options);

// In the parent: starts `program arguments…` (which calls ProbeShard) and waits for it, unless the same file with the same options passed
// before (remembered in the cache folder). A child that is killed by a signal is kBadModel, naming file and signal; else its own code.
Status ProbeInChild(const std::string& program, const std::vector<std::string>& arguments, const EngineOptions& options);

}  // namespace meshnet::cli
