// One extension of a session at an expected past length, and its result (docs/protocol.md).
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "protocol/hidden_state.h"
#include "protocol/refusal.h"
#include "protocol/sampling_params.h"

namespace meshnet {

enum class StepKind { kPrefill, kDecode };

// Which rows come back. Stages before the tail return hidden states, so a route asks them for kAll; the tail samples the last row only.
enum class RowsWanted { kNone, kLast, kAll };

struct Step {
  SessionKey key;
  Incarnation incarnation;              // of the worker that answered Open
  StepSeq seq;
  StepKind kind = StepKind::kPrefill;
  PastLen start;                        // kDecode: == past length; kPrefill: <= past length, truncates to it
  PrefixDigest prefix_digest;           // of the tokens [0, start)
  std::vector<Token> tokens;            // 1..chunk_rows_max; on every stage, not only the head
  std::optional<HiddenState> input;     // [tokens.size()][boundary width]; absent on the head
  RowsWanted rows = RowsWanted::kAll;
  bool logits_wanted = false;           // tail only: the rows' raw logits as `StepResult::output`
  std::optional<SamplingParams> sampling;  // tail only: with the first step that samples, and whenever it changes
  StepSeq ack;                          // the caller holds every reply up to this one
  std::optional<Time> deadline;         // still queued then: refused

  Step Copy() const;                    // by name, as of HiddenState: a chunk is megabytes
};

struct Credit {
  StepSeq step_seq_max;                 // absolute: acknowledged + window
  uint32_t pending_tokens_max = 0;
  friend bool operator==(const Credit&, const Credit&) = default;
};

struct StepResult {
  StepSeq seq;
  bool replayed = false;                // recorded reply, nothing was executed
  PastLen past_len;                     // after the step
  PrefixDigest digest;                  // of [0, past_len)
  HiddenState output;                   // hidden states, or logits when asked; empty otherwise
  std::vector<SampledToken> sampled;    // tail: one for rows kLast, unless no sampling was ever sent
  Credit credit;
  uint32_t kv_tokens_reserved = 0;      // of this session
  std::chrono::microseconds queue_time{0};
  std::chrono::microseconds compute_time{0};

  StepResult Copy() const;
};

// The peer or the network broke without a typed answer: the outcome is unknown, so the same step is sent again.
struct TransportFault {
  std::string message;
};

template <typename T>
using Reply = std::variant<T, Refusal, TransportFault>;

}  // namespace meshnet
