#include "wire/validate.h"

#include <algorithm>

#include "wire/frame.h"
#include "wire/validate_sampling.h"
#include "wire/wire_limits.h"

namespace meshnet {
namespace {

namespace pb = shard::v1;

Refusal Bad(Detail detail, std::string message) {
  Refusal refusal;
  refusal.reason = Reason::kBadRequest;
  refusal.detail = detail;
  refusal.message = std::move(message);
  return refusal;
}

template <typename Id>
std::string SizeMessage(const char* field, size_t size) {
  return std::string(field) + " must have " + std::to_string(Id::kSize) + " bytes, not " + std::to_string(size);
}

// A day: a longer wait in a queue is no deadline, and its sum with any clock cannot overflow.
constexpr uint64_t kDeadlineMsMax = 24u * 3600u * 1000u;

// Reads the fields of one step into `step`; the first failure wins.
class StepFields {
 public:
  StepFields(const pb::Step& wire, const ShardShape& shape, Step& step) : wire_(wire), shape_(shape), step_(step) {}

  std::optional<Refusal> Read() {
    for (auto read : {&StepFields::ReadKinds, &StepFields::ReadPosition, &StepFields::ReadTokens, &StepFields::ReadInput, &StepFields::ReadTail}) {
      if (std::optional<Refusal> refusal = (this->*read)()) return refusal;
    }
    return std::nullopt;
  }

 private:
  std::optional<Refusal> ReadKinds() {
    switch (wire_.kind()) {
      case pb::STEP_KIND_PREFILL: step_.kind = StepKind::kPrefill; break;
      case pb::STEP_KIND_DECODE: step_.kind = StepKind::kDecode; break;
      default: return Bad(Detail::kShape, "kind " + std::to_string(wire_.kind()) + " is neither PREFILL nor DECODE");
    }
    switch (wire_.rows()) {
      case pb::ROWS_WANTED_NONE: step_.rows = RowsWanted::kNone; break;
      case pb::ROWS_WANTED_LAST: step_.rows = RowsWanted::kLast; break;
      case pb::ROWS_WANTED_ALL: step_.rows = RowsWanted::kAll; break;
      default: return Bad(Detail::kShape, "rows " + std::to_string(wire_.rows()) + " is none of NONE, LAST, ALL");
    }
    return std::nullopt;
  }

  std::optional<Refusal> ReadPosition() {
    if (!wire_.has_start_pos()) return Bad(Detail::kShape, "start_pos is missing; it must be present, 0 too");
    step_.start = PastLen(wire_.start_pos());
    std::optional<PrefixDigest> digest = PrefixDigest::FromRaw(wire_.prefix_digest());
    if (!digest) return Bad(Detail::kShape, SizeMessage<PrefixDigest>("prefix_digest", wire_.prefix_digest().size()));
    step_.prefix_digest = *digest;
    return std::nullopt;
  }

  std::optional<Refusal> ReadTokens() {
    size_t count = static_cast<size_t>(wire_.tokens_size());
    if (count == 0) return Bad(Detail::kShape, "a step needs at least one token");
    if (count > shape_.chunk_rows_max) {
      return Bad(Detail::kLimit, "a step of " + std::to_string(count) + " tokens; at most " + std::to_string(shape_.chunk_rows_max) + " are taken");
    }
    if (step_.kind == StepKind::kDecode && count != 1) return Bad(Detail::kShape, "a DECODE step has exactly one token, not " + std::to_string(count));
    for (Token token : step_.tokens) {
      if (token < 0 || static_cast<uint32_t>(token) >= shape_.vocabulary_size) {
        return Bad(Detail::kToken, "token " + std::to_string(token) + " is outside [0," + std::to_string(shape_.vocabulary_size) + ")");
      }
    }
    return std::nullopt;
  }

  std::optional<Refusal> ReadInput() {
    if (shape_.head) {
      if (wire_.has_input()) return Bad(Detail::kShape, "the head takes token ids, not a frame");
      return std::nullopt;
    }
    if (!wire_.has_input()) return Bad(Detail::kShape, "a stage behind the head needs an input frame");
    if (wire_.input().width() != shape_.boundary_width) {
      Refusal refusal;
      refusal.reason = Reason::kBoundaryMismatch;
      refusal.message = "input rows have " + std::to_string(wire_.input().width()) + " values; this boundary has " + std::to_string(shape_.boundary_width);
      return refusal;
    }
    if (wire_.input().rows() != static_cast<uint32_t>(wire_.tokens_size())) {
      return Bad(Detail::kShape, "input has " + std::to_string(wire_.input().rows()) + " rows for " + std::to_string(wire_.tokens_size()) + " tokens");
    }
    std::variant<HiddenState, FrameFault> frame = ValidateFrame(wire_.input());
    if (FrameFault* fault = std::get_if<FrameFault>(&frame)) return Bad(fault->detail, std::move(fault->message));
    step_.input = std::move(std::get<HiddenState>(frame));
    return std::nullopt;
  }

  std::optional<Refusal> ReadTail() {
    step_.logits_wanted = wire_.logits_wanted();
    if (!shape_.tail) {
      if (wire_.logits_wanted()) return Bad(Detail::kShape, "only the tail has logits");
      if (wire_.has_sampling()) return Bad(Detail::kShape, "only the tail samples");
      return std::nullopt;
    }
    if (step_.logits_wanted) {
      uint64_t rows = step_.rows == RowsWanted::kAll ? step_.tokens.size() : 1;
      if (rows * shape_.vocabulary_size * sizeof(float) > kAnswerBytesMax) {
        return Bad(Detail::kLimit, "the logits of " + std::to_string(rows) + " rows are larger than an answer may be; ask for fewer");
      }
    }
    if (!wire_.has_sampling()) return std::nullopt;
    std::variant<SamplingParams, Refusal> sampling = ValidateSampling(wire_.sampling(), shape_.vocabulary_size);
    if (Refusal* refusal = std::get_if<Refusal>(&sampling)) return std::move(*refusal);
    step_.sampling = std::move(std::get<SamplingParams>(sampling));
    return std::nullopt;
  }

  const pb::Step& wire_;
  const ShardShape& shape_;
  Step& step_;
};

}  // namespace

ShardShape ShapeOf(const ShardDescription& description) {
  ShardShape shape;
  shape.head = description.is_head();
  shape.tail = description.is_tail();
  shape.boundary_width = description.boundary_width;
  shape.vocabulary_size = description.vocabulary_size;
  shape.chunk_rows_max = description.limits.chunk_rows_max;
  shape.frame_bytes_max = description.limits.frame_bytes_max;
  return shape;
}

uint64_t FrameBytesMax(uint32_t chunk_rows_max, uint32_t boundary_width) {
  uint64_t frame = uint64_t{chunk_rows_max} * boundary_width;
  if (frame > kFrameBytesCeiling / sizeof(float)) return kFrameBytesCeiling;
  return std::min(kFrameBytesCeiling, frame * sizeof(float) + kStepOverheadBytesMax);
}

std::variant<IncomingStep, Refusal> ValidateStep(const pb::Step& wire, const ShardShape& shape, Time now) {
  uint64_t bytes = wire.ByteSizeLong();
  if (bytes > shape.frame_bytes_max) {
    return Bad(Detail::kLimit, "a step of " + std::to_string(bytes) + " bytes; at most " + std::to_string(shape.frame_bytes_max) + " are taken");
  }
  std::variant<SessionKey, Refusal> key = ValidateSessionRef(wire.ref());
  if (Refusal* refusal = std::get_if<Refusal>(&key)) return std::move(*refusal);
  std::optional<Incarnation> incarnation = Incarnation::FromRaw(wire.incarnation());
  if (!incarnation) return Bad(Detail::kShape, SizeMessage<Incarnation>("incarnation", wire.incarnation().size()));
  if (wire.step_seq() == 0) return Bad(Detail::kShape, "step_seq counts from 1");

  IncomingStep incoming;
  Step& step = incoming.step;
  step.key = std::get<SessionKey>(key);
  step.incarnation = *incarnation;
  step.seq = StepSeq(wire.step_seq());
  step.ack = StepSeq(wire.ack_seq());
  if (wire.deadline_ms() != 0) step.deadline = now + std::chrono::milliseconds(std::min(wire.deadline_ms(), kDeadlineMsMax));
  // Tokens are kept whatever else is wrong, as many as show that they are too many: the core looks at them too.
  const int tokens = static_cast<int>(std::min<uint64_t>(static_cast<uint64_t>(wire.tokens_size()), uint64_t{shape.chunk_rows_max} + 1));
  step.tokens.assign(wire.tokens().begin(), wire.tokens().begin() + tokens);
  incoming.fields = StepFields(wire, shape, step).Read();
  return incoming;
}

std::variant<SessionKey, Refusal> ValidateSessionRef(const pb::SessionRef& wire) {
  std::optional<SessionId> session = SessionId::FromRaw(wire.route_session_id());
  if (!session) return Bad(Detail::kShape, SizeMessage<SessionId>("route_session_id", wire.route_session_id().size()));
  if (wire.route_epoch() == 0) return Bad(Detail::kShape, "route_epoch counts from 1");
  return SessionKey{*session, Epoch(wire.route_epoch())};
}

std::optional<Refusal> ValidateVersion(uint32_t major, uint32_t minor) {
  if (major == kProtocolMajor && minor <= kProtocolMinor) return std::nullopt;
  Refusal refusal;
  refusal.reason = Reason::kProtocolMismatch;
  refusal.message = "the caller speaks shard protocol " + std::to_string(major) + "." + std::to_string(minor) + ", this worker speaks " +
                    std::to_string(kProtocolMajor) + "." + std::to_string(kProtocolMinor);
  return refusal;
}

std::variant<OpenRequest, Refusal> ValidateOpen(const pb::OpenRequest& wire) {
  if (std::optional<Refusal> refusal = ValidateVersion(wire.protocol_major(), wire.protocol_minor())) return std::move(*refusal);
  std::variant<SessionKey, Refusal> key = ValidateSessionRef(wire.ref());
  if (Refusal* refusal = std::get_if<Refusal>(&key)) return std::move(*refusal);
  std::optional<Sha256Digest> root = Sha256Digest::FromRaw(wire.model_root());
  if (!root) return Bad(Detail::kShape, SizeMessage<Sha256Digest>("model_root", wire.model_root().size()));
  if (!wire.has_range() || wire.range().begin() >= wire.range().end()) return Bad(Detail::kShape, "range is missing or empty");
  if (wire.cache_salt().size() > kCacheSaltBytesMax) {
    return Bad(Detail::kLimit, "cache_salt of " + std::to_string(wire.cache_salt().size()) + " bytes; at most " + std::to_string(kCacheSaltBytesMax) + " are taken");
  }
  OpenRequest request;
  request.key = std::get<SessionKey>(key);
  request.model_root = *root;
  request.range = LayerRange{wire.range().begin(), wire.range().end()};
  request.reserve_tokens = wire.reserve_tokens();
  request.cache_salt = wire.cache_salt();
  return request;
}

}  // namespace meshnet
