// What a set of shard descriptions amounts to, beside CheckRoute of route.h. Pure.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "protocol/describe.h"
#include "session/route.h"

namespace meshnet {

// "stage [10,20)" or, with an address, "stage [10,20) at 127.0.0.1:7071".
std::string StageName(const ShardDescription& description, const std::string& address);

// The smallest of all limits; a chunk's hidden state also fits every stage's frame. `stages` is not empty.
RouteLimits LimitsOf(std::span<const Stage> stages);

// The layers of the model that none of `descriptions` covers, in order.
std::vector<LayerRange> MissingRanges(const std::vector<ShardDescription>& descriptions);

}  // namespace meshnet
