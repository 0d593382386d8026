// A ShardLink straight onto a ShardHost in the same process: for tests and tools, and the reference of what the wire may not change.
#pragma once

#include <memory>
#include <string>

#include "protocol/shard_link.h"
#include "worker/shard_host.h"

namespace meshnet {

// `host` outlives the link and has loaded its engine. Its `done`s run on the host's engine thread, those of a passed deadline on the link's own.
std::unique_ptr<ShardLink> ConnectInProcess(ShardHost& host, std::string name);

}  // namespace meshnet
