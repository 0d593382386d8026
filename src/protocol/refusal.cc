#include "protocol/refusal.h"

#include "base/check.h"

namespace meshnet {

const char* Name(Reason reason) {
  switch (reason) {
    case Reason::kCacheMiss: return "cache-miss";
    case Reason::kEpochStale: return "epoch-stale";
    case Reason::kCapacity: return "capacity";
    case Reason::kContextExceeded: return "context-exceeded";
    case Reason::kStepConflict: return "step-conflict";
    case Reason::kStepGap: return "step-gap";
    case Reason::kStepReplyGone: return "step-reply-gone";
    case Reason::kCreditExceeded: return "credit-exceeded";
    case Reason::kTruncateUnsupported: return "truncate-unsupported";
    case Reason::kModelMismatch: return "model-mismatch";
    case Reason::kRangeMismatch: return "range-mismatch";
    case Reason::kBoundaryMismatch: return "boundary-mismatch";
    case Reason::kBadRequest: return "bad-request";
    case Reason::kUnauthenticated: return "unauthenticated";
    case Reason::kPermissionDenied: return "permission-denied";
    case Reason::kDraining: return "draining";
    case Reason::kExecFailed: return "exec-failed";
    case Reason::kPoisoned: return "poisoned";
    case Reason::kCancelled: return "cancelled";
    case Reason::kDeadlineExceeded: return "deadline-exceeded";
    case Reason::kProtocolMismatch: return "protocol-mismatch";
  }
  MESHNET_CHECK(false && "closed enum");
}

const char* Name(Detail detail) {
  switch (detail) {
    case Detail::kNone: return "none";
    case Detail::kNoSession: return "no-session";
    case Detail::kEvictedLru: return "evicted-lru";
    case Detail::kEvictedTtl: return "evicted-ttl";
    case Detail::kPastMismatch: return "past-mismatch";
    case Detail::kDigestMismatch: return "digest-mismatch";
    case Detail::kIncarnation: return "incarnation";
    case Detail::kLost: return "lost";
    case Detail::kDrained: return "drained";
    case Detail::kSessions: return "sessions";
    case Detail::kTokens: return "tokens";
    case Detail::kShape: return "shape";
    case Detail::kEncoding: return "encoding";
    case Detail::kToken: return "token";
    case Detail::kNonFinite: return "non-finite";
    case Detail::kLimit: return "limit";
  }
  MESHNET_CHECK(false && "closed enum");
}

}  // namespace meshnet
