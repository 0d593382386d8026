#include "protocol/step.h"

namespace meshnet {

Step Step::Copy() const {
  Step copy;
  copy.key = key;
  copy.incarnation = incarnation;
  copy.seq = seq;
  copy.kind = kind;
  copy.start = start;
  copy.prefix_digest = prefix_digest;
  copy.tokens = tokens;
  if (input) copy.input = input->Copy();
  copy.rows = rows;
  copy.logits_wanted = logits_wanted;
  copy.sampling = sampling;
  copy.ack = ack;
  copy.deadline = deadline;
  return copy;
}

StepResult StepResult::Copy() const {
  StepResult copy;
  copy.seq = seq;
  copy.replayed = replayed;
  copy.past_len = past_len;
  copy.digest = digest;
  copy.output = output.Copy();
  copy.sampled = sampled;
  copy.credit = credit;
  copy.kv_tokens_reserved = kv_tokens_reserved;
  copy.queue_time = queue_time;
  copy.compute_time = compute_time;
  return copy;
}

}  // namespace meshnet
