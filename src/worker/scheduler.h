// What the engine runs next: one micro-batch of all ready decode steps, alternated with the rows of one full prefill chunk (short ones follow
// each other: each decode call reads all weights once more), decode first, round robin over sessions. Pure: time is an argument. Single-token
// steps share a call; a chunk runs alone (docs/engine.md, Calls).
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "kv/hot_kv.h"

namespace meshnet {

enum class StepShape {
  kDecode,  // one token, may share an engine call
  kChunk,   // alone in its call
};

struct SchedulerConfig {
  uint32_t decode_rows_max = 128;                         // steps of one micro-batch
  uint32_t chunk_rows_max = 128;                          // of chunks between two decode calls that are ready
  Duration gather_max = std::chrono::milliseconds(20);    // longest wait for stragglers
  double gather_share = 0.05;                             // … and the part of the longer of the last two decode calls that it may cost,
  // or this part of the shortest there was: two batches in place of one read all weights once more, and that call was mostly that.
  double gather_share_of_pass = 0.5;
};

class Scheduler {
 public:
  explicit Scheduler(SchedulerConfig config) : config_(config) {}

  // A step of a session goes behind those of it that are queued already. `rows`: its tokens.
  void Queue(const kv::Ticket& ticket, StepShape shape, uint32_t rows);
  // It will not run. Unknown tickets are ignored.
  void Drop(const kv::Ticket& ticket);
  bool empty() const { return sessions_.empty(); }

  struct Plan {
    enum class Verdict {
      kIdle,  // nothing is ready
      kWait,  // until `until`, or until something comes: stragglers of the last batch would join
      kRun,
    };
    Verdict verdict = Verdict::kIdle;
    Time until;
    StepShape shape = StepShape::kDecode;
    std::vector<kv::Ticket> tickets;  // at most one of a session; kChunk: exactly one
  };
  Plan Next(Time now);

  // The plan's tickets leave the queue: they run now.
  void Started(const Plan& plan);
  // `took`: the engine call alone.
  void Finished(const Plan& plan, Duration took);

  // The host's engine turn was waited for, so whoever ran before has only now sent its sessions on. True when it is worth another short
  // wait for them (at most once per batch); Next then says until when. The turn must not be held meanwhile.
  bool RegatherAfterTurn(Time now);

 private:
  struct Queued {
    kv::Ticket ticket;
    StepShape shape;
    uint32_t rows;
  };
  struct SessionQueue {
    std::deque<Queued> steps;
    uint64_t place = 0;  // in the line: when its first step became ready, or it was served last
  };

  // In rows: the shortest chunk reads all weights too, and none is worth more than a full one.
  uint32_t CostOf(uint32_t chunk_rows) const;
  std::vector<const SessionQueue*> Ready(StepShape shape) const;
  size_t Expected() const;
  Duration GatherBound() const;
  bool Gathers(size_t ready, Time now);
  void StartGathering(size_t ready, Time now);

  SchedulerConfig config_;
  std::map<SessionKey, SessionQueue> sessions_;  // none is empty
  uint64_t next_place_ = 1;
  uint32_t chunk_rows_left_ = 0;  // until the next decode turn, each chunk counted as CostOf

  // Gathering. A wait that brought nobody is not repeated for a growing number of batches, and those it was for are not expected any more: two
  // cohorts that take turns on different hosts overlap, and waiting for each other would only cost; and an answer that has ended never comes.
  std::vector<SessionKey> recent_[2];  // sessions of the last two decode batches, sorted
  Duration decode_took_[2] = {};  // the last two decode calls
  Duration shortest_decode_ = Duration::max();
  std::optional<Time> gather_until_;
  Time gather_end_;
  size_t gather_ready_ = 0;
  bool gather_brought_ = false;
  bool regathered_ = false;
  uint32_t skip_batches_ = 0;
  uint32_t backoff_ = 0;
};

}  // namespace meshnet
