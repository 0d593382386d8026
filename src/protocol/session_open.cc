#include "protocol/session_open.h"

#include "base/check.h"

namespace meshnet {

const char* Name(ReleaseOutcome outcome) {
  switch (outcome) {
    case ReleaseOutcome::kReleased: return "released";
    case ReleaseOutcome::kNotFound: return "not-found";
    case ReleaseOutcome::kEpochStale: return "epoch-stale";
    case ReleaseOutcome::kDeferred: return "deferred";
  }
  MESHNET_CHECK(false && "closed enum");
}

}  // namespace meshnet
