// The proof of split: the same chunks through a route and through one plain llama.cpp context, every logit of every row compared.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "engine/llama/llama_shard_engine.h"
#include "protocol/hidden_state.h"
#include "session/session_driver.h"

namespace meshnet::cli {

// What was seen of one session so far.
struct SessionProof {
  uint32_t prompt_tokens = 0;
  uint32_t steps = 0;
  bool tokens_equal = true;          // the likeliest token of every generated position
  double max_abs_logit_diff = 0;     // over all rows; a value that is not finite on one side only counts as the largest double
  std::string first_difference;      // where, for people; empty when there is none

  bool equal() const { return tokens_equal && max_abs_logit_diff == 0; }
};

// Index of the largest value, the first of equals. Of an empty row: 0.
Token Likeliest(std::span<const float> row);
// The largest absolute difference. Bit-equal values differ by 0, also when they are not finite.
double LargestDifference(std::span<const float> one, std::span<const float> other);
// Compares rows that stand at position `first` and on; `generated_from` is the first position whose likeliest token was used.
void CompareRows(const HiddenState& route, const HiddenState& reference, uint32_t first, uint32_t generated_from, SessionProof* proof);

struct ProofPlan {
  std::vector<std::vector<Token>> prompts;
  uint32_t steps = 0;
  uint32_t chunk_rows = 0;  // tokens of one chunk of a prompt
};

// Asked between chunks; true ends the proof with kFailure.
using StopProbe = std::function<bool()>;
using ProofProgress = std::function<void(const std::string&)>;

// One session after the other, the route and the reference in step.
Result<std::vector<SessionProof>> ProveAlone(const ProofPlan& plan, Route& route, const Clock& clock, ReferenceContext& reference,
                                             const StopProbe& stop, const ProofProgress& progress);
// All sessions at once, one thread each, in lockstep so that their decode steps meet in one engine call; each is compared with itself alone on
// the reference. Keeps ReferenceBytes of logits.
Result<std::vector<SessionProof>> ProveTogether(const ProofPlan& plan, Route& route, const Clock& clock, ReferenceContext& reference,
                                                const StopProbe& stop, const ProofProgress& progress);
uint64_t ReferenceBytes(const ProofPlan& plan, uint32_t vocabulary_size);

}  // namespace meshnet::cli
