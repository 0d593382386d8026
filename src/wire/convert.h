// Our types to proto. Nothing here can fail: what we hold was validated when it came in. The other direction is validate.h.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "meshnet/shard/v1/shard.pb.h"
#include "protocol/describe.h"
#include "protocol/session_open.h"
#include "protocol/step.h"

namespace meshnet {

shard::v1::DescribeReply ToProto(const ShardDescription& description);
shard::v1::OpenRequest ToProto(const OpenRequest& request);
shard::v1::OpenReply ToProto(const OpenReply& reply);
// `now` turns the step's deadline into milliseconds from arrival.
shard::v1::Step ToProto(const Step& step, uint64_t request_id, Time now);
// `replayed` marks this copy of a recorded result.
shard::v1::StepResult ToProto(const StepResult& result, bool replayed);
shard::v1::SamplingParams ToProto(const SamplingParams& params);
shard::v1::StatsReply ToProto(const ShardStats& stats);
shard::v1::SessionRef ToProto(const SessionKey& key);
shard::v1::ReleaseOutcome ToProto(ReleaseOutcome outcome);
shard::v1::ShardState ToProto(ShardState state);

}  // namespace meshnet
