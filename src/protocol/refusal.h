// A shard's typed "no" (docs/protocol.md): a closed reason and what the caller needs to recover. A refused step changed nothing,
// except kExecFailed, which was rolled back to the step's start.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/ids.h"

namespace meshnet {

enum class Reason {
  kCacheMiss,            // the KV is not what the caller expects: re-prefill from the journal
  kEpochStale,           // a newer route owns the session: stop
  kCapacity,             // no room now: wait or take another route
  kContextExceeded,      // the step would pass the session's reservation
  kStepConflict,         // this step_seq was committed with other content
  kStepGap,              // an earlier step_seq is missing: resend from `session.next_step`
  kStepReplyGone,        // this step_seq was committed and its reply acknowledged
  kCreditExceeded,       // wait for credit
  kTruncateUnsupported,  // re-prefill from `nearest_past_len`
  kModelMismatch,
  kRangeMismatch,
  kBoundaryMismatch,
  kBadRequest,
  kUnauthenticated,
  kPermissionDenied,
  kDraining,
  kExecFailed,           // the engine failed; rolled back to the step's start
  kPoisoned,             // an invariant of the shard broke
  kCancelled,            // the caller's own cancel took the step out of the queue
  kDeadlineExceeded,     // the step was still queued at its deadline
  kProtocolMismatch,     // the protocol version is not served here
};

// Narrows kCacheMiss, kCapacity and kBadRequest.
enum class Detail {
  kNone,
  kNoSession, kEvictedLru, kEvictedTtl, kPastMismatch, kDigestMismatch, kIncarnation, kLost, kDrained,  // kCacheMiss
  kSessions, kTokens,                                                                                    // kCapacity
  kShape, kEncoding, kToken, kNonFinite, kLimit,                                                         // kBadRequest
};

// What the shard knows of the session at the moment of a refusal.
struct SessionSnapshot {
  PastLen past_len;
  PrefixDigest digest;
  StepSeq next_step;        // the step_seq it would accept next
  StepSeq step_seq_max;     // credit
};

struct Refusal {
  Reason reason = Reason::kBadRequest;
  Detail detail = Detail::kNone;
  std::string message;                        // for people: stage, range, epoch, cause; no session id, no text of a user
  Epoch fence;                                // highest epoch seen for the session; 0 when none is remembered
  Incarnation incarnation;                    // of the refusing worker
  std::optional<SessionSnapshot> session;     // present when (session, epoch) is live
  std::optional<PastLen> nearest_past_len;    // kTruncateUnsupported: where a re-prefill may start
  std::optional<Duration> retry_after;        // kCapacity, kCreditExceeded, kDraining
};

// Lower case words with hyphens, as in golden transcripts and metric labels: "cache-miss".
const char* Name(Reason reason);
const char* Name(Detail detail);

}  // namespace meshnet
