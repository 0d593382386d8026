#include "wire/error_detail.h"

#include <algorithm>

#include "base/check.h"
#include "wire/clean_text.h"
#include "wire/wire_limits.h"

namespace meshnet {
namespace {

namespace pb = shard::v1;

// Numbers of grpc::StatusCode, which are part of the gRPC protocol.
enum Code {
  kCancelled = 1, kInvalidArgument = 3, kDeadlineExceeded = 4, kAlreadyExists = 6, kPermissionDenied = 7, kResourceExhausted = 8,
  kFailedPrecondition = 9, kAborted = 10, kOutOfRange = 11, kUnimplemented = 12, kInternal = 13, kUnavailable = 14, kUnauthenticated = 16
};

struct ReasonRow {
  Reason reason;
  pb::Reason wire;
  Code code;
  pb::RetryClass retry;
};
constexpr ReasonRow kReasons[] = {
    {Reason::kCacheMiss, pb::CACHE_MISS, kAborted, pb::REPREFILL},
    {Reason::kEpochStale, pb::EPOCH_STALE, kFailedPrecondition, pb::NEVER},
    {Reason::kCapacity, pb::CAPACITY, kResourceExhausted, pb::SAME_STEP},
    {Reason::kContextExceeded, pb::CONTEXT_EXCEEDED, kOutOfRange, pb::NEVER},
    {Reason::kStepConflict, pb::STEP_CONFLICT, kAlreadyExists, pb::NEVER},
    {Reason::kStepGap, pb::STEP_GAP, kOutOfRange, pb::SAME_STEP},
    {Reason::kStepReplyGone, pb::STEP_REPLY_GONE, kFailedPrecondition, pb::REPREFILL},
    {Reason::kCreditExceeded, pb::CREDIT_EXCEEDED, kResourceExhausted, pb::SAME_STEP},
    {Reason::kTruncateUnsupported, pb::TRUNCATE_UNSUPPORTED, kFailedPrecondition, pb::REPREFILL},
    {Reason::kModelMismatch, pb::MODEL_MISMATCH, kFailedPrecondition, pb::OTHER_WORKER},
    {Reason::kRangeMismatch, pb::RANGE_MISMATCH, kFailedPrecondition, pb::OTHER_WORKER},
    {Reason::kBoundaryMismatch, pb::BOUNDARY_MISMATCH, kFailedPrecondition, pb::OTHER_WORKER},
    {Reason::kBadRequest, pb::BAD_REQUEST, kInvalidArgument, pb::NEVER},
    {Reason::kUnauthenticated, pb::UNAUTHENTICATED, kUnauthenticated, pb::NEVER},
    {Reason::kPermissionDenied, pb::PERMISSION_DENIED, kPermissionDenied, pb::NEVER},
    {Reason::kDraining, pb::DRAINING, kUnavailable, pb::OTHER_WORKER},
    {Reason::kExecFailed, pb::EXEC_FAILED, kAborted, pb::SAME_STEP},
    {Reason::kPoisoned, pb::POISONED, kInternal, pb::OTHER_WORKER},
    {Reason::kCancelled, pb::STEP_CANCELLED, kCancelled, pb::SAME_STEP},
    {Reason::kDeadlineExceeded, pb::DEADLINE_EXCEEDED, kDeadlineExceeded, pb::SAME_STEP},
    {Reason::kProtocolMismatch, pb::PROTOCOL_MISMATCH, kUnimplemented, pb::OTHER_WORKER},
};

struct DetailRow {
  Detail detail;
  pb::Detail wire;
};
constexpr DetailRow kDetails[] = {
    {Detail::kNone, pb::DETAIL_NONE}, {Detail::kNoSession, pb::NO_SESSION}, {Detail::kEvictedLru, pb::EVICTED_LRU},
    {Detail::kEvictedTtl, pb::EVICTED_TTL}, {Detail::kPastMismatch, pb::PAST_MISMATCH}, {Detail::kDigestMismatch, pb::DIGEST_MISMATCH},
    {Detail::kIncarnation, pb::INCARNATION}, {Detail::kLost, pb::LOST}, {Detail::kDrained, pb::DRAINED}, {Detail::kSessions, pb::SESSIONS},
    {Detail::kTokens, pb::TOKENS}, {Detail::kShape, pb::SHAPE}, {Detail::kEncoding, pb::ENCODING}, {Detail::kToken, pb::TOKEN},
    {Detail::kNonFinite, pb::NONFINITE}, {Detail::kLimit, pb::LIMIT},
};

const ReasonRow& Row(Reason reason) {
  auto row = std::find_if(std::begin(kReasons), std::end(kReasons), [&](const ReasonRow& r) { return r.reason == reason; });
  MESHNET_CHECK(row != std::end(kReasons));
  return *row;
}

uint64_t Milliseconds(Duration duration) {
  // Rounded up: a client must not come back a moment too early.
  auto ms = std::chrono::ceil<std::chrono::milliseconds>(duration).count();
  return ms < 0 ? 0 : static_cast<uint64_t>(ms);
}

// A few fields of the well-known google.rpc messages, written by hand because no package ships their .proto.
class FieldWriter {
 public:
  void Varint(uint32_t field, uint64_t value) {
    if (value == 0) return;
    Raw(field << 3);
    Raw(value);
  }
  void Text(uint32_t field, const std::string& value) {
    Raw(field << 3 | 2);
    Raw(value.size());
    bytes_ += value;
  }
  std::string Take() { return std::move(bytes_); }

 private:
  void Raw(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_.push_back(static_cast<char>(value | 0x80));
    bytes_.push_back(static_cast<char>(value));
  }
  std::string bytes_;
};

std::string Any(const std::string& type, const std::string& value) {
  FieldWriter any;
  any.Text(1, "type.googleapis.com/" + type);
  any.Text(2, value);
  return any.Take();
}

}  // namespace

int GrpcCode(Reason reason) { return Row(reason).code; }

pb::RetryClass RetryClassOf(Reason reason) { return Row(reason).retry; }

pb::ErrorDetail ToProto(const Refusal& refusal) {
  const ReasonRow& row = Row(refusal.reason);
  pb::ErrorDetail detail;
  detail.set_reason(row.wire);
  for (const DetailRow& entry : kDetails) {
    if (entry.detail == refusal.detail) detail.set_detail(entry.wire);
  }
  detail.set_retry(row.retry);
  detail.set_message(CleanText(refusal.message, kMessageTextMax));
  detail.set_fence_epoch(refusal.fence.value);
  if (!refusal.incarnation.is_zero()) detail.set_incarnation(refusal.incarnation.Raw());
  if (refusal.session) {
    pb::SessionSnapshot& session = *detail.mutable_session();
    session.set_past_len(refusal.session->past_len.value);
    session.set_digest(refusal.session->digest.Raw());
    session.set_next_step(refusal.session->next_step.value);
    session.set_step_seq_max(refusal.session->step_seq_max.value);
  }
  if (refusal.nearest_past_len) detail.set_nearest_past_len(refusal.nearest_past_len->value);
  if (refusal.retry_after) detail.set_retry_after_ms(Milliseconds(*refusal.retry_after));
  detail.set_grpc_code(row.code);
  return detail;
}

std::optional<Refusal> FromProto(const pb::ErrorDetail& detail) {
  auto row = std::find_if(std::begin(kReasons), std::end(kReasons), [&](const ReasonRow& r) { return r.wire == detail.reason(); });
  if (row == std::end(kReasons)) return std::nullopt;
  Refusal refusal;
  refusal.reason = row->reason;
  for (const DetailRow& entry : kDetails) {
    if (entry.wire == detail.detail()) refusal.detail = entry.detail;
  }
  refusal.message = CleanText(detail.message(), kMessageTextMax);
  refusal.fence = Epoch(detail.fence_epoch());
  if (!detail.incarnation().empty()) {
    std::optional<Incarnation> incarnation = Incarnation::FromRaw(detail.incarnation());
    if (!incarnation) return std::nullopt;
    refusal.incarnation = *incarnation;
  }
  if (detail.has_session()) {
    std::optional<PrefixDigest> digest = PrefixDigest::FromRaw(detail.session().digest());
    if (!digest) return std::nullopt;
    refusal.session = SessionSnapshot{PastLen(detail.session().past_len()), *digest, StepSeq(detail.session().next_step()),
                                      StepSeq(detail.session().step_seq_max())};
  }
  if (detail.has_nearest_past_len()) refusal.nearest_past_len = PastLen(detail.nearest_past_len());
  if (detail.has_retry_after_ms()) {
    constexpr uint64_t day_ms = 24u * 3600u * 1000u;  // a larger wait of a broken peer would overflow a Duration
    refusal.retry_after = std::chrono::milliseconds(std::min(detail.retry_after_ms(), day_ms));
  }
  return refusal;
}

std::string StatusDetails(const Refusal& refusal) {
  pb::ErrorDetail detail = ToProto(refusal);
  FieldWriter status;
  status.Varint(1, static_cast<uint64_t>(detail.grpc_code()));
  status.Text(2, detail.message());
  status.Text(3, Any("meshnet.shard.v1.ErrorDetail", detail.SerializeAsString()));
  if (detail.has_retry_after_ms()) {
    FieldWriter delay;
    delay.Varint(1, detail.retry_after_ms() / 1000);
    delay.Varint(2, detail.retry_after_ms() % 1000 * 1000000);
    FieldWriter retry_info;
    retry_info.Text(1, delay.Take());
    status.Text(3, Any("google.rpc.RetryInfo", retry_info.Take()));
  }
  return status.Take();
}

}  // namespace meshnet
