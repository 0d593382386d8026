// What one round of Describe over all stages means for the route. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "protocol/describe.h"
#include "protocol/step.h"
#include "session/route.h"

namespace meshnet {

// A link of the route and what its stage last said of itself.
struct RouteMember {
  std::string address;
  std::optional<ShardDescription> known;
};

struct RouteVerdict {
  RouteState state = RouteState::kBroken;  // kServing: all stages answered and belong together
  Status status;                           // Ok when serving; kRefused when no waiting helps; else kPeerUnreachable
  std::vector<size_t> order;               // when serving
  std::vector<std::string> warnings;
};

// `replies[i]` is the answer of `members[i]`. `model_root` is that of the first successful round: the route never changes its model.
RouteVerdict JudgeRoute(const std::vector<RouteMember>& members, const std::vector<Reply<ShardDescription>>& replies,
                        const std::optional<Sha256Digest>& model_root);

}  // namespace meshnet
