#include "session/route_verdict.h"

#include <algorithm>

#include "base/check.h"
#include "session/route_check.h"

namespace meshnet {
namespace {

// How one stage stands in the way of serving. The higher value decides the state of the route.
enum class Obstacle { kNone, kDraining, kBroken, kRefused };

struct Finding {
  Obstacle obstacle = Obstacle::kNone;
  std::string text;
};

std::string MemberName(const RouteMember& member) {
  if (member.known) return StageName(*member.known, member.address);
  return "the stage at " + member.address;
}

Finding JudgeRefusal(const RouteMember& member, const Refusal& refusal) {
  const std::string text = MemberName(member) + " refuses: " + Name(refusal.reason) + (refusal.message.empty() ? "" : ": " + refusal.message);
  switch (refusal.reason) {
    case Reason::kUnauthenticated:
    case Reason::kPermissionDenied:
    case Reason::kProtocolMismatch:
      return {Obstacle::kRefused, text};
    case Reason::kDraining:
      return {Obstacle::kDraining, text};
    case Reason::kCacheMiss:
    case Reason::kEpochStale:
    case Reason::kCapacity:
    case Reason::kContextExceeded:
    case Reason::kStepConflict:
    case Reason::kStepGap:
    case Reason::kStepReplyGone:
    case Reason::kCreditExceeded:
    case Reason::kTruncateUnsupported:
    case Reason::kModelMismatch:
    case Reason::kRangeMismatch:
    case Reason::kBoundaryMismatch:
    case Reason::kBadRequest:
    case Reason::kExecFailed:
    case Reason::kPoisoned:
    case Reason::kCancelled:
    case Reason::kDeadlineExceeded:
      return {Obstacle::kBroken, text};
  }
  MESHNET_CHECK(false && "closed enum");
}

Finding JudgeState(const RouteMember& member, const ShardDescription& description) {
  // A worker that has only bound its port may not know its range yet.
  const std::string name = description.range.empty() ? MemberName(member) : StageName(description, member.address);
  switch (description.state) {
    case ShardState::kServing:
      return {};
    case ShardState::kStarting:
      return {Obstacle::kBroken, name + " is still loading"};
    case ShardState::kDraining:
      return {Obstacle::kDraining, name + " is draining"};
    case ShardState::kPoisoned:
      return {Obstacle::kBroken, name + " found an invariant broken and serves no more"};
  }
  MESHNET_CHECK(false && "closed enum");
}

Finding JudgeReply(const RouteMember& member, const Reply<ShardDescription>& reply) {
  if (const auto* fault = std::get_if<TransportFault>(&reply)) {
    return {Obstacle::kBroken, MemberName(member) + " does not answer" + (fault->message.empty() ? "" : ": " + fault->message)};
  }
  if (const auto* refusal = std::get_if<Refusal>(&reply)) return JudgeRefusal(member, *refusal);
  return JudgeState(member, std::get<ShardDescription>(reply));
}

// Who has never answered has no known range, but what the others leave open is a good guess for people.
std::string GuessedRanges(const std::vector<RouteMember>& members, const std::vector<ShardDescription>& answered) {
  const bool all_known = std::all_of(members.begin(), members.end(), [](const RouteMember& member) { return member.known.has_value(); });
  if (all_known || answered.empty()) return "";
  std::string text;
  for (const LayerRange& range : MissingRanges(answered)) text += (text.empty() ? "" : ", ") + range.Text();
  return text.empty() ? "" : "; layers " + text + " are missing";
}

RouteVerdict JudgeTogether(const std::vector<RouteMember>& members, const std::vector<ShardDescription>& descriptions,
                           const std::optional<Sha256Digest>& model_root) {
  RouteCheck check = CheckRoute(descriptions);
  if (!check.status.ok()) return {RouteState::kRefused, check.status, {}, {}};
  const ShardDescription& first = descriptions[check.order.front()];
  if (model_root && first.model_root != *model_root) {
    return {RouteState::kRefused,
            Refused("the route is refused: this gateway serves model root " + model_root->Hex() + ", but its stages came back with " +
                    first.model_root.Hex() + " (" + StageName(first, members[check.order.front()].address) +
                    "): restart the gateway to serve another model"),
            {},
            {}};
  }
  return {RouteState::kServing, OkStatus(), std::move(check.order), std::move(check.warnings)};
}

}  // namespace

RouteVerdict JudgeRoute(const std::vector<RouteMember>& members, const std::vector<Reply<ShardDescription>>& replies,
                        const std::optional<Sha256Digest>& model_root) {
  MESHNET_CHECK(members.size() == replies.size());
  Obstacle worst = Obstacle::kNone;
  std::string text;
  std::vector<ShardDescription> answered;
  for (size_t i = 0; i < members.size(); ++i) {
    const auto* description = std::get_if<ShardDescription>(&replies[i]);
    if (description != nullptr && (!description->range.empty() || description->state == ShardState::kServing)) answered.push_back(*description);
    Finding finding = JudgeReply(members[i], replies[i]);
    if (finding.obstacle == Obstacle::kNone) continue;
    worst = std::max(worst, finding.obstacle);
    text += (text.empty() ? "" : "; ") + finding.text;
  }
  switch (worst) {
    case Obstacle::kNone:
      return JudgeTogether(members, answered, model_root);
    case Obstacle::kDraining:
      return {RouteState::kDraining, PeerUnreachable(text), {}, {}};
    case Obstacle::kBroken:
      return {RouteState::kBroken, PeerUnreachable(text + GuessedRanges(members, answered)), {}, {}};
    case Obstacle::kRefused:
      return {RouteState::kRefused, Refused("the route is refused: " + text), {}, {}};
  }
  MESHNET_CHECK(false && "closed enum");
}

}  // namespace meshnet
