// Where the answers to steps go: a Forward stream, or a link in the same process.
#pragma once

#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

#include "protocol/refusal.h"
#include "protocol/step.h"
#include "wire/validate.h"

namespace meshnet {

// A committed result, shared with the record that replays it; `replayed` belongs to this copy.
struct RecordedResult {
  std::shared_ptr<const StepResult> result;
  bool replayed = false;
};

struct StepAnswer {
  uint64_t request_id = 0;
  std::variant<RecordedResult, Refusal> outcome;
};

class StepAnswerSink {
 public:
  virtual ~StepAnswerSink() = default;
  // All answers of one engine call at once, so that they can share a message. Must not block: this is the engine's thread, or, for a shard
  // that does not serve, the thread that sent the step.
  virtual void OnAnswers(std::vector<StepAnswer> answers) = 0;
};

// One step as it came in, with whom it is answered to.
struct SubmittedStep {
  uint64_t request_id = 0;
  IncomingStep incoming;
};

}  // namespace meshnet
