#include "wire/convert.h"

#include <algorithm>
#include <bit>

#include "wire/clean_text.h"
#include "wire/wire_limits.h"

namespace meshnet {
namespace {

namespace pb = shard::v1;

static_assert(std::endian::native == std::endian::little, "frames travel as little-endian f32; a big-endian host needs a swap here");

void FillFrame(const HiddenState& rows, pb::Frame& frame) {
  frame.set_layout_version(1);
  frame.set_encoding(pb::ENCODING_F32);
  frame.set_rows(rows.rows());
  frame.set_width(rows.width());
  frame.set_payload(rows.values().data(), rows.values().size_bytes());
}

pb::TruncationClass WireClass(TruncationClass truncation_class) {
  switch (truncation_class) {
    case TruncationClass::kFull: return pb::TRUNCATION_CLASS_FULL;
    case TruncationClass::kWindow: return pb::TRUNCATION_CLASS_WINDOW;
    case TruncationClass::kWhole: return pb::TRUNCATION_CLASS_WHOLE;
  }
  return pb::TRUNCATION_CLASS_UNSPECIFIED;
}

pb::RowsWanted WireRows(RowsWanted rows) {
  switch (rows) {
    case RowsWanted::kNone: return pb::ROWS_WANTED_NONE;
    case RowsWanted::kLast: return pb::ROWS_WANTED_LAST;
    case RowsWanted::kAll: return pb::ROWS_WANTED_ALL;
  }
  return pb::ROWS_WANTED_UNSPECIFIED;
}

void FillNumerics(const NumericsFingerprint& from, pb::Numerics& to) {
  to.set_mode(from.mode == NumericsMode::kExact ? pb::NUMERICS_MODE_EXACT : pb::NUMERICS_MODE_FAST);
  to.set_engine_tree(CleanText(from.engine_tree, kNameBytesMax));
  to.set_backend(CleanText(from.backend, kNameBytesMax));
  to.set_cpu_features(CleanText(from.cpu_features, kNameBytesMax));
  to.set_flash_attention(from.flash_attention);
  to.set_repack(from.repack);
  to.set_kv_type_k(CleanText(from.kv_type_k, kNameBytesMax));
  to.set_kv_type_v(CleanText(from.kv_type_v, kNameBytesMax));
  to.set_threads(from.threads);
  to.set_context_tokens(from.context_tokens);
}

void FillLimits(const ShardLimits& from, pb::Limits& to) {
  to.set_sessions_max(from.sessions_max);
  to.set_context_tokens(from.context_tokens);
  to.set_budget_tokens(from.budget_tokens);
  to.set_ttl_seconds(from.ttl_seconds);
  to.set_chunk_rows_max(from.chunk_rows_max);
  to.set_window_steps(from.window_steps);
  to.set_frame_bytes_max(from.frame_bytes_max);
}

void FillRange(const LayerRange& from, pb::LayerRange& to) {
  to.set_begin(from.begin);
  to.set_end(from.end);
}

void FillCredit(const Credit& from, pb::Credit& to) {
  to.set_step_seq_max(from.step_seq_max.value);
  to.set_pending_tokens_max(from.pending_tokens_max);
}

void FillSampled(const SampledToken& from, pb::SampledToken& to) {
  to.set_token(from.token);
  to.set_end_of_generation(from.end_of_generation);
  if (from.logprob) to.set_logprob(*from.logprob);
  for (const TokenLogprob& entry : from.top) {
    pb::TokenLogprob& top = *to.add_top();
    top.set_token(entry.token);
    top.set_logprob(entry.logprob);
  }
}

template <typename Field>
void FillTokens(const std::vector<Token>& from, Field& to) {
  to.Add(from.begin(), from.end());
}

void FillGrammar(const SamplingParams& from, pb::SamplingParams& to) {
  to.set_grammar(from.grammar);
  to.set_grammar_type(from.grammar_type);
  to.set_grammar_lazy(from.grammar_lazy);
  for (const GrammarTrigger& trigger : from.grammar_triggers) {
    pb::GrammarTrigger& entry = *to.add_grammar_triggers();
    entry.set_type(trigger.type);
    entry.set_value(trigger.value);
    entry.set_token(trigger.token);
  }
  FillTokens(from.preserved_tokens, *to.mutable_preserved_tokens());
  to.set_generation_prompt(from.generation_prompt);
  to.set_reasoning_budget_tokens(from.reasoning_budget_tokens);
  FillTokens(from.reasoning_budget_start, *to.mutable_reasoning_budget_start());
  for (const std::vector<Token>& end : from.reasoning_budget_end) FillTokens(end, *to.add_reasoning_budget_end()->mutable_tokens());
  FillTokens(from.reasoning_budget_forced, *to.mutable_reasoning_budget_forced());
}

}  // namespace

pb::DescribeReply ToProto(const ShardDescription& description) {
  pb::DescribeReply reply;
  reply.set_protocol_major(description.protocol_major);
  reply.set_protocol_minor(description.protocol_minor);
  reply.set_engine_build(CleanText(description.engine_build, kNameBytesMax));
  reply.set_incarnation(description.incarnation.Raw());
  reply.set_state(ToProto(description.state));
  reply.set_process_id(description.process_id);
  reply.set_model_root(description.model_root.Raw());
  reply.set_range_digest(description.range_digest.Raw());
  reply.set_model_name(CleanText(description.model_name, kNameBytesMax));
  reply.set_architecture(CleanText(description.architecture, kNameBytesMax));
  reply.set_layer_count(description.layer_count);
  FillRange(description.range, *reply.mutable_range());
  reply.set_boundary_width(description.boundary_width);
  reply.set_vocabulary_size(description.vocabulary_size);
  reply.set_truncation_class(WireClass(description.truncation_class));
  reply.set_window_tokens(description.window_tokens);
  FillLimits(description.limits, *reply.mutable_limits());
  FillNumerics(description.numerics, *reply.mutable_numerics());
  reply.set_weight_bytes(description.weight_bytes);
  reply.set_hole_bytes(description.hole_bytes);
  reply.set_kv_bytes_per_token(description.kv_bytes_per_token);
  reply.set_kv_bytes_predicted(description.kv_bytes_predicted);
  reply.set_kv_bytes_allocated(description.kv_bytes_allocated);
  reply.set_compute_bytes_allocated(description.compute_bytes_allocated);
  reply.add_encodings(pb::ENCODING_F32);
  return reply;
}

pb::OpenRequest ToProto(const OpenRequest& request) {
  pb::OpenRequest wire;
  *wire.mutable_ref() = ToProto(request.key);
  wire.set_model_root(request.model_root.Raw());
  FillRange(request.range, *wire.mutable_range());
  wire.set_reserve_tokens(request.reserve_tokens);
  wire.set_cache_salt(request.cache_salt);
  wire.set_protocol_major(kProtocolMajor);
  wire.set_protocol_minor(kProtocolMinor);
  return wire;
}

pb::OpenReply ToProto(const OpenReply& reply) {
  pb::OpenReply wire;
  wire.set_incarnation(reply.incarnation.Raw());
  wire.set_past_len(reply.past_len.value);
  wire.set_digest(reply.digest.Raw());
  wire.set_next_step(reply.next_step.value);
  FillCredit(reply.credit, *wire.mutable_credit());
  wire.set_reserved_tokens(reply.reserved_tokens);
  if (reply.superseded) wire.set_superseded_epoch(reply.superseded->value);
  return wire;
}

pb::Step ToProto(const Step& step, uint64_t request_id, Time now) {
  pb::Step wire;
  wire.set_request_id(request_id);
  *wire.mutable_ref() = ToProto(step.key);
  wire.set_incarnation(step.incarnation.Raw());
  wire.set_step_seq(step.seq.value);
  wire.set_kind(step.kind == StepKind::kDecode ? pb::STEP_KIND_DECODE : pb::STEP_KIND_PREFILL);
  wire.set_start_pos(step.start.value);
  wire.set_prefix_digest(step.prefix_digest.Raw());
  FillTokens(step.tokens, *wire.mutable_tokens());
  if (step.input) FillFrame(*step.input, *wire.mutable_input());
  wire.set_rows(WireRows(step.rows));
  wire.set_logits_wanted(step.logits_wanted);
  if (step.sampling) *wire.mutable_sampling() = ToProto(*step.sampling);
  wire.set_ack_seq(step.ack.value);
  if (step.deadline) {
    // 0 means none, so a deadline that has passed travels as the shortest one.
    auto left = std::chrono::ceil<std::chrono::milliseconds>(*step.deadline - now).count();
    wire.set_deadline_ms(static_cast<uint64_t>(std::max<int64_t>(1, left)));
  }
  return wire;
}

pb::StepResult ToProto(const StepResult& result, bool replayed) {
  pb::StepResult wire;
  wire.set_step_seq(result.seq.value);
  wire.set_replayed(replayed);
  wire.set_past_len(result.past_len.value);
  wire.set_digest(result.digest.Raw());
  if (!result.output.empty()) FillFrame(result.output, *wire.mutable_output());
  for (const SampledToken& token : result.sampled) FillSampled(token, *wire.add_sampled());
  FillCredit(result.credit, *wire.mutable_credit());
  wire.set_kv_tokens_reserved(result.kv_tokens_reserved);
  wire.mutable_timings()->set_queue_us(static_cast<uint64_t>(std::max<int64_t>(0, result.queue_time.count())));
  wire.mutable_timings()->set_compute_us(static_cast<uint64_t>(std::max<int64_t>(0, result.compute_time.count())));
  return wire;
}

pb::SamplingParams ToProto(const SamplingParams& params) {
  pb::SamplingParams wire;
  wire.set_seed(params.seed);
  wire.set_prompt_len(params.prompt_len.value);
  wire.set_temperature(params.temperature);
  wire.set_dynatemp_range(params.dynatemp_range);
  wire.set_dynatemp_exponent(params.dynatemp_exponent);
  wire.set_top_k(params.top_k);
  wire.set_top_p(params.top_p);
  wire.set_min_p(params.min_p);
  wire.set_top_n_sigma(params.top_n_sigma);
  wire.set_typical_p(params.typical_p);
  wire.set_xtc_probability(params.xtc_probability);
  wire.set_xtc_threshold(params.xtc_threshold);
  wire.set_min_keep(params.min_keep);
  wire.set_repeat_last_n(params.repeat_last_n);
  wire.set_repeat_penalty(params.repeat_penalty);
  wire.set_presence_penalty(params.presence_penalty);
  wire.set_frequency_penalty(params.frequency_penalty);
  wire.set_dry_multiplier(params.dry_multiplier);
  wire.set_dry_base(params.dry_base);
  wire.set_dry_allowed_length(params.dry_allowed_length);
  wire.set_dry_penalty_last_n(params.dry_penalty_last_n);
  for (const std::string& breaker : params.dry_sequence_breakers) wire.add_dry_sequence_breakers(breaker);
  wire.set_mirostat(params.mirostat);
  wire.set_mirostat_tau(params.mirostat_tau);
  wire.set_mirostat_eta(params.mirostat_eta);
  wire.set_adaptive_target(params.adaptive_target);
  wire.set_adaptive_decay(params.adaptive_decay);
  wire.set_ignore_eos(params.ignore_eos);
  wire.set_samplers(params.samplers);
  for (const LogitBias& bias : params.logit_bias) {
    pb::LogitBias& entry = *wire.add_logit_bias();
    entry.set_token(bias.token);
    entry.set_bias(bias.bias);
  }
  FillGrammar(params, wire);
  wire.set_logprobs(params.logprobs);
  wire.set_logprobs_wanted(params.logprobs_wanted);
  wire.set_post_sampling_probs(params.post_sampling_probs);
  return wire;
}

pb::StatsReply ToProto(const ShardStats& stats) {
  pb::StatsReply wire;
  wire.set_state(ToProto(stats.state));
  wire.set_incarnation(stats.incarnation.Raw());
  wire.set_sessions_live(stats.sessions_live);
  wire.set_sessions_busy(stats.sessions_busy);
  wire.set_kv_tokens_reserved(stats.kv_tokens_reserved);
  wire.set_kv_tokens_used(stats.kv_tokens_used);
  wire.set_sequences_free(stats.sequences_free);
  wire.set_steps_queued(stats.steps_queued);
  wire.set_evictions_ttl(stats.evictions_ttl);
  wire.set_evictions_lru(stats.evictions_lru);
  wire.set_evictions_superseded(stats.evictions_superseded);
  wire.set_sessions_lost(stats.sessions_lost);
  wire.set_replays(stats.replays);
  wire.set_steps_committed(stats.steps_committed);
  wire.set_tokens_committed(stats.tokens_committed);
  wire.set_engine_calls(stats.engine_calls);
  for (const auto& [reason, count] : stats.refusals) {
    pb::RefusalCount& entry = *wire.add_refusals();
    entry.set_reason(reason);
    entry.set_count(count);
  }
  for (const ShardSessionStats& session : stats.sessions) {
    pb::SessionStats& entry = *wire.add_sessions();
    entry.set_id_prefix(session.id_prefix);
    entry.set_epoch(session.epoch.value);
    entry.set_past_len(session.past_len.value);
    entry.set_reserved_tokens(session.reserved_tokens);
    entry.set_busy(session.busy);
    entry.set_idle_seconds(session.idle_seconds);
  }
  return wire;
}

pb::SessionRef ToProto(const SessionKey& key) {
  pb::SessionRef ref;
  ref.set_route_session_id(key.session.Raw());
  ref.set_route_epoch(key.epoch.value);
  return ref;
}

pb::ReleaseOutcome ToProto(ReleaseOutcome outcome) {
  switch (outcome) {
    case ReleaseOutcome::kReleased: return pb::RELEASED;
    case ReleaseOutcome::kNotFound: return pb::NOT_FOUND;
    case ReleaseOutcome::kEpochStale: return pb::RELEASE_EPOCH_STALE;
    case ReleaseOutcome::kDeferred: return pb::DEFERRED;
  }
  return pb::RELEASE_OUTCOME_UNSPECIFIED;
}

pb::ShardState ToProto(ShardState state) {
  switch (state) {
    case ShardState::kStarting: return pb::SHARD_STATE_STARTING;
    case ShardState::kServing: return pb::SHARD_STATE_SERVING;
    case ShardState::kDraining: return pb::SHARD_STATE_DRAINING;
    case ShardState::kPoisoned: return pb::SHARD_STATE_POISONED;
  }
  return pb::SHARD_STATE_UNSPECIFIED;
}

}  // namespace meshnet
