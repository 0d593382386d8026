// Where files that can be made again live: XDG_CACHE_HOME/meshnet, else HOME/.cache/meshnet. Never in a clone, never beside a model.
#pragma once

#include <string>

#include "base/status.h"

namespace meshnet {

// Where the folder `name` inside the cache is; "" when there is no cache. Touches nothing.
std::string CachePath(const std::string& name);

// The folder `name` inside the cache, made if need be, not readable by others. kFailure says which variable to set.
Result<std::string> CacheFolder(const std::string& name);

}  // namespace meshnet
