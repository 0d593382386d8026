#include "wire/validate_reply.h"

#include <cmath>

#include "protocol/sampling_limits.h"
#include "wire/clean_text.h"
#include "wire/frame.h"
#include "wire/wire_limits.h"

namespace meshnet {
namespace {

namespace pb = shard::v1;

Status Malformed(const std::string& what) { return Failure("malformed answer: " + what); }

template <typename Id>
Status ReadId(const char* field, const std::string& raw, Id& id) {
  std::optional<Id> read = Id::FromRaw(raw);
  if (!read) return Malformed(std::string(field) + " has " + std::to_string(raw.size()) + " bytes");
  id = *read;
  return OkStatus();
}

std::string Text(const std::string& raw) { return CleanText(raw, kNameBytesMax); }

ShardLimits ReadLimits(const pb::Limits& wire) {
  ShardLimits limits;
  limits.sessions_max = wire.sessions_max();
  limits.context_tokens = wire.context_tokens();
  limits.budget_tokens = wire.budget_tokens();
  limits.ttl_seconds = wire.ttl_seconds();
  limits.chunk_rows_max = wire.chunk_rows_max();
  limits.window_steps = wire.window_steps();
  limits.frame_bytes_max = wire.frame_bytes_max();
  return limits;
}

Status ReadNumerics(const pb::Numerics& wire, NumericsFingerprint& numerics) {
  switch (wire.mode()) {
    case pb::NUMERICS_MODE_FAST: numerics.mode = NumericsMode::kFast; break;
    case pb::NUMERICS_MODE_EXACT: numerics.mode = NumericsMode::kExact; break;
    default: return Malformed("unknown numerics mode " + std::to_string(wire.mode()));
  }
  numerics.engine_tree = Text(wire.engine_tree());
  numerics.backend = Text(wire.backend());
  numerics.cpu_features = Text(wire.cpu_features());
  numerics.flash_attention = wire.flash_attention();
  numerics.repack = wire.repack();
  numerics.kv_type_k = Text(wire.kv_type_k());
  numerics.kv_type_v = Text(wire.kv_type_v());
  numerics.threads = wire.threads();
  numerics.context_tokens = wire.context_tokens();
  return OkStatus();
}

Status ReadClass(pb::TruncationClass wire, TruncationClass& truncation_class) {
  switch (wire) {
    case pb::TRUNCATION_CLASS_FULL: truncation_class = TruncationClass::kFull; return OkStatus();
    case pb::TRUNCATION_CLASS_WINDOW: truncation_class = TruncationClass::kWindow; return OkStatus();
    case pb::TRUNCATION_CLASS_WHOLE: truncation_class = TruncationClass::kWhole; return OkStatus();
    default: return Malformed("unknown truncation class " + std::to_string(wire));
  }
}

Status ReadSampled(const pb::SampledToken& wire, SampledToken& token) {
  token.token = wire.token();
  token.end_of_generation = wire.end_of_generation();
  if (wire.token() < 0 || (wire.has_logprob() && std::isnan(wire.logprob()))) return Malformed("sampled token out of range");
  if (wire.has_logprob()) token.logprob = wire.logprob();
  if (wire.top_size() > static_cast<int>(kLogprobsMax)) return Malformed("too many alternatives");
  for (const pb::TokenLogprob& entry : wire.top()) {
    if (entry.token() < 0 || std::isnan(entry.logprob())) return Malformed("alternative out of range");
    token.top.push_back({entry.token(), entry.logprob()});
  }
  return OkStatus();
}

}  // namespace

Result<ShardState> ValidateState(pb::ShardState wire) {
  switch (wire) {
    case pb::SHARD_STATE_STARTING: return ShardState::kStarting;
    case pb::SHARD_STATE_SERVING: return ShardState::kServing;
    case pb::SHARD_STATE_DRAINING: return ShardState::kDraining;
    case pb::SHARD_STATE_POISONED: return ShardState::kPoisoned;
    default: return Malformed("unknown shard state " + std::to_string(wire));
  }
}

Result<ShardDescription> ValidateDescription(const pb::DescribeReply& wire) {
  ShardDescription description;
  description.protocol_major = wire.protocol_major();
  description.protocol_minor = wire.protocol_minor();
  description.engine_build = Text(wire.engine_build());
  if (Status status = ReadId("incarnation", wire.incarnation(), description.incarnation); !status.ok()) return status;
  Result<ShardState> state = ValidateState(wire.state());
  if (!state.ok()) return state.status();
  description.state = *state;
  description.process_id = wire.process_id();
  if (Status status = ReadId("model_root", wire.model_root(), description.model_root); !status.ok()) return status;
  if (Status status = ReadId("range_digest", wire.range_digest(), description.range_digest); !status.ok()) return status;
  description.model_name = Text(wire.model_name());
  description.architecture = Text(wire.architecture());
  description.layer_count = wire.layer_count();
  description.range = LayerRange{wire.range().begin(), wire.range().end()};
  if (description.range.empty() || description.range.end > description.layer_count) {
    return Malformed("layers " + description.range.Text() + " of " + std::to_string(description.layer_count));
  }
  description.boundary_width = wire.boundary_width();
  description.vocabulary_size = wire.vocabulary_size();
  if (Status status = ReadClass(wire.truncation_class(), description.truncation_class); !status.ok()) return status;
  description.window_tokens = wire.window_tokens();
  description.limits = ReadLimits(wire.limits());
  if (Status status = ReadNumerics(wire.numerics(), description.numerics); !status.ok()) return status;
  description.weight_bytes = wire.weight_bytes();
  description.hole_bytes = wire.hole_bytes();
  description.kv_bytes_per_token = wire.kv_bytes_per_token();
  description.kv_bytes_predicted = wire.kv_bytes_predicted();
  description.kv_bytes_allocated = wire.kv_bytes_allocated();
  description.compute_bytes_allocated = wire.compute_bytes_allocated();
  return description;
}

Result<OpenReply> ValidateOpenReply(const pb::OpenReply& wire) {
  OpenReply reply;
  if (Status status = ReadId("incarnation", wire.incarnation(), reply.incarnation); !status.ok()) return status;
  reply.past_len = PastLen(wire.past_len());
  if (Status status = ReadId("digest", wire.digest(), reply.digest); !status.ok()) return status;
  if (wire.next_step() == 0) return Malformed("next_step is 0");
  reply.next_step = StepSeq(wire.next_step());
  reply.credit = Credit{StepSeq(wire.credit().step_seq_max()), wire.credit().pending_tokens_max()};
  reply.reserved_tokens = wire.reserved_tokens();
  if (wire.has_superseded_epoch()) reply.superseded = Epoch(wire.superseded_epoch());
  return reply;
}

Result<StepResult> ValidateStepResult(const pb::StepResult& wire) {
  StepResult result;
  result.seq = StepSeq(wire.step_seq());
  result.replayed = wire.replayed();
  result.past_len = PastLen(wire.past_len());
  if (Status status = ReadId("digest", wire.digest(), result.digest); !status.ok()) return status;
  if (wire.has_output()) {
    std::variant<HiddenState, FrameFault> frame = ValidateFrame(wire.output());
    if (FrameFault* fault = std::get_if<FrameFault>(&frame)) return Malformed(fault->message);
    result.output = std::move(std::get<HiddenState>(frame));
  }
  if (wire.sampled_size() > static_cast<int>(kStepsPerMessageMax)) return Malformed("too many sampled tokens");
  for (const pb::SampledToken& entry : wire.sampled()) {
    SampledToken token;
    if (Status status = ReadSampled(entry, token); !status.ok()) return status;
    result.sampled.push_back(std::move(token));
  }
  result.credit = Credit{StepSeq(wire.credit().step_seq_max()), wire.credit().pending_tokens_max()};
  result.kv_tokens_reserved = wire.kv_tokens_reserved();
  constexpr uint64_t year_us = 365ull * 24 * 3600 * 1000000;
  result.queue_time = std::chrono::microseconds(std::min(wire.timings().queue_us(), year_us));
  result.compute_time = std::chrono::microseconds(std::min(wire.timings().compute_us(), year_us));
  return result;
}

Result<ShardStats> ValidateStats(const pb::StatsReply& wire) {
  ShardStats stats;
  Result<ShardState> state = ValidateState(wire.state());
  if (!state.ok()) return state.status();
  stats.state = *state;
  if (Status status = ReadId("incarnation", wire.incarnation(), stats.incarnation); !status.ok()) return status;
  stats.sessions_live = wire.sessions_live();
  stats.sessions_busy = wire.sessions_busy();
  stats.kv_tokens_reserved = wire.kv_tokens_reserved();
  stats.kv_tokens_used = wire.kv_tokens_used();
  stats.sequences_free = wire.sequences_free();
  stats.steps_queued = wire.steps_queued();
  stats.evictions_ttl = wire.evictions_ttl();
  stats.evictions_lru = wire.evictions_lru();
  stats.evictions_superseded = wire.evictions_superseded();
  stats.sessions_lost = wire.sessions_lost();
  stats.replays = wire.replays();
  stats.steps_committed = wire.steps_committed();
  stats.tokens_committed = wire.tokens_committed();
  stats.engine_calls = wire.engine_calls();
  if (static_cast<size_t>(wire.refusals_size()) > kStatsSessionsMax || static_cast<size_t>(wire.sessions_size()) > kStatsSessionsMax) {
    return Malformed("too many entries");
  }
  for (const pb::RefusalCount& entry : wire.refusals()) stats.refusals.emplace_back(CleanText(entry.reason(), 64), entry.count());
  for (const pb::SessionStats& entry : wire.sessions()) {
    ShardSessionStats session;
    session.id_prefix = CleanText(entry.id_prefix(), 8);
    session.epoch = Epoch(entry.epoch());
    session.past_len = PastLen(entry.past_len());
    session.reserved_tokens = entry.reserved_tokens();
    session.busy = entry.busy();
    session.idle_seconds = std::isfinite(entry.idle_seconds()) ? entry.idle_seconds() : 0;
    stats.sessions.push_back(std::move(session));
  }
  return stats;
}

Result<ReleaseOutcome> ValidateRelease(const pb::ReleaseReply& wire) {
  switch (wire.outcome()) {
    case pb::RELEASED: return ReleaseOutcome::kReleased;
    case pb::NOT_FOUND: return ReleaseOutcome::kNotFound;
    case pb::RELEASE_EPOCH_STALE: return ReleaseOutcome::kEpochStale;
    case pb::DEFERRED: return ReleaseOutcome::kDeferred;
    default: return Malformed("unknown release outcome " + std::to_string(wire.outcome()));
  }
}

}  // namespace meshnet
