// Asserts inside llama.cpp end the process, so a shard is run once in a child process before it is served.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine/engine_options.h"

namespace meshnet::cli {

// In the child: loads the shard with a small KV, runs one chunk and one decode step, and says what went wrong.
Status ProbeShard(const EngineOptions& options);

// What a probe may take: ten minutes, and a second for each 16 MB that may have to come from a slow disk.
Duration ProbeLimit(uint64_t shard_bytes);

// In the parent: starts `program arguments…` (which calls ProbeShard) and waits for it, unless the same file with the same options passed
// before (remembered in the cache folder). A child that is killed by a signal, or has not ended within `limit` and then is, is kBadModel,
// naming file and cause; else its own code.
Status ProbeInChild(const std::string& program, const std::vector<std::string>& arguments, const EngineOptions& options, Duration limit);

}  // namespace meshnet::cli
