// A worker's answers into our types, on the caller's side: a broken or hostile worker must not hurt a gateway. A malformed answer is a
// Status that says what is wrong; the caller treats it as a transport fault.
#pragma once

#include "base/status.h"
#include "meshnet/shard/v1/shard.pb.h"
#include "protocol/describe.h"
#include "protocol/session_open.h"
#include "protocol/step.h"

namespace meshnet {

Result<ShardDescription> ValidateDescription(const shard::v1::DescribeReply& wire);
Result<OpenReply> ValidateOpenReply(const shard::v1::OpenReply& wire);
Result<StepResult> ValidateStepResult(const shard::v1::StepResult& wire);
Result<ShardStats> ValidateStats(const shard::v1::StatsReply& wire);
Result<ReleaseOutcome> ValidateRelease(const shard::v1::ReleaseReply& wire);
Result<ShardState> ValidateState(shard::v1::ShardState wire);

}  // namespace meshnet
