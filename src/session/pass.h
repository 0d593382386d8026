// One pass of a few chunks of the journal through all stages: which step may be sent when, and what each answer means for the book-keeping.
// Pure: sends nothing and waits for nothing; whoever drives it does both. Prefill, decode and replay are passes of different length.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "protocol/describe.h"
#include "protocol/step.h"
#include "session/chunk_plan.h"
#include "session/journal.h"
#include "session/recovery.h"

namespace meshnet {

// One stage of an opened session, as its answers left it.
struct StageBook {
  Incarnation incarnation;
  StepSeq acked;                 // every reply up to here is held; the next new step is one more
  Credit credit;
  bool unsure = false;           // a step's outcome was never learnt: only a new epoch puts it right
};

// What the pass shall do.
struct PassPlan {
  std::vector<Chunk> chunks;                 // contiguous, at least one
  uint32_t chunks_in_flight_max = 2;         // in the whole route
  bool decode = false;                       // one token, exactly at every stage's past length
  // Of the tail's last chunk: its last row sampled, or all rows' logits.
  enum class Yield { kToken, kLogits } yield = Yield::kToken;
  std::optional<SamplingParams> sampling;    // goes with the last chunk; absent: the tail has it already
};

// A step that may be sent now. The same step may come again: then it is a resend.
struct StepToSend {
  size_t stage = 0;
  uint64_t ticket = 0;  // names the answer
  Step* step = nullptr; // the pass's own until its answer: goes out again unchanged if need be. Its sender sets the deadline
};

class Pass {
 public:
  // `journal` and `books` (one a stage) outlive the pass and are updated by it. `shapes` are the stages' descriptions, for checking answers.
  Pass(PassPlan plan, SessionKey key, Journal& journal, std::vector<StageBook>& books, std::vector<const ShardDescription*> shapes);

  // Call until it gives nothing, after construction and after each change.
  std::optional<StepToSend> NextSend(Time now);
  // When the next delayed resend is due, if after `now`.
  std::optional<Time> NextDue(Time now) const;

  void OnReply(size_t stage, uint64_t ticket, Reply<StepResult> reply);

  // The first step of a stage ended in trouble, and no answer of that stage is outstanding any more.
  struct Stuck {
    size_t stage = 0;
    Trouble trouble;
    PastLen start;                        // of the step
    std::optional<PastLen> shard_agreed;  // Situation::shard_agreed
  };
  std::optional<Stuck> stuck();
  // The stuck stage's steps go out again, unchanged, from `due` on.
  void Resend(size_t stage, Time due);

  // No more sends; answers to what was sent are still taken in. A stage with a step whose outcome stays unknown becomes unsure in Close.
  void Abandon() { abandoned_ = true; }
  void Close();

  bool done() const { return tail_chunks_ == plan_.chunks.size(); }
  size_t in_flight() const { return in_flight_; }
  bool in_flight_at(size_t stage) const;
  // Committed by the tail.
  PastLen tail_end() const;
  // After done().
  SampledToken TakeToken();
  HiddenState TakeLogits() { return std::move(logits_); }

 private:
  enum class ItemState { kWaiting, kInFlight, kAnswered, kTroubled };
  struct Item {
    size_t chunk = 0;
    Step step;
    ItemState state = ItemState::kWaiting;
    Time due{};
    uint64_t ticket = 0;
    bool unknown = false;  // it was sent, and nothing definite has been heard of it
    bool alone = false;    // nothing of the stage was outstanding before it when its trouble came
    StepResult result;
    Trouble trouble;
  };
  // The steps of one stage that are not done with, in the order of their seq.
  struct Lane {
    std::deque<Item> items;
    size_t entered = 0;    // chunks that came as far as this stage
    size_t in_flight = 0;
  };

  void Enter(size_t stage, std::optional<HiddenState> input);
  bool HasCredit(const Lane& lane, size_t stage, const Item& item) const;
  void Collect(size_t stage);
  std::optional<Violation> Check(size_t stage, const Item& item) const;
  std::optional<Violation> CheckTail(const Item& item, bool last) const;
  void NoteRefusal(size_t stage, const Item& item, const Refusal& refusal);
  Item* FindItem(size_t stage, uint64_t ticket);
  bool is_tail(size_t stage) const { return stage + 1 == lanes_.size(); }

  const PassPlan plan_;
  const SessionKey key_;
  Journal& journal_;
  std::vector<StageBook>& books_;
  const std::vector<const ShardDescription*> shapes_;
  std::vector<PrefixDigest> digests_;  // before chunk i; one more for the end
  std::vector<Lane> lanes_;
  size_t tail_chunks_ = 0;
  size_t in_flight_ = 0;
  uint64_t next_ticket_ = 1;
  bool abandoned_ = false;
  std::vector<SampledToken> sampled_;
  HiddenState logits_;
};

}  // namespace meshnet
