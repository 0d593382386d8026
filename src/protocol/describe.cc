#include "protocol/describe.h"

#include "base/check.h"

namespace meshnet {

const char* Name(TruncationClass truncation_class) {
  switch (truncation_class) {
    case TruncationClass::kFull: return "full";
    case TruncationClass::kWindow: return "window";
    case TruncationClass::kWhole: return "whole";
  }
  MESHNET_CHECK(false && "closed enum");
}

const char* Name(NumericsMode mode) {
  switch (mode) {
    case NumericsMode::kFast: return "fast";
    case NumericsMode::kExact: return "exact";
  }
  MESHNET_CHECK(false && "closed enum");
}

const char* Name(ShardState state) {
  switch (state) {
    case ShardState::kStarting: return "starting";
    case ShardState::kServing: return "serving";
    case ShardState::kDraining: return "draining";
    case ShardState::kPoisoned: return "poisoned";
  }
  MESHNET_CHECK(false && "closed enum");
}

}  // namespace meshnet
