// What the callers of a shard do, as a list: random, biased to boundaries, and cut down to what a failure needs. An operation is told relative
// to what its client knows when it comes, so a list stays sensible when others are taken out of it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace meshnet::differential {

struct Operation {
  enum class Kind {
    kOpen,     // epoch: 0 the client's own, 1 a newer one, -1 a stale one
    kStep,
    kDecodes,  // one token of every client that has a session
    kResend,   // the last step again; `conflict`: with other tokens
    kRun,      // `count` engine calls
    kCancel,
    kRelease,
    kAdvance,  // `count` milliseconds, then what is due expires
  };
  Kind kind = Kind::kRun;
  uint32_t client = 0;
  int32_t epoch = 0;
  uint32_t count = 1;           // tokens of a step; tokens to reserve in an Open (0: all); calls; milliseconds
  // Of steps.
  bool decode = false;
  uint32_t back = 0;            // starts so much before what the client thinks is the end
  int32_t ahead = 0;            // 1: starts one too late
  int32_t seq = 0;              // added to the step's number
  uint32_t rows = 1;            // RowsWanted
  uint32_t content = 0;         // which tokens
  bool acknowledge = true;
  bool sample = false;
  bool wrong_digest = false;
  bool other_incarnation = false;
  bool bad_token = false;
  bool short_deadline = false;
  bool poison = false;          // one token overflows
  bool conflict = false;
  uint32_t break_at = 0;        // of a run: the computation is aborted at its n-th node; 0: not
};

struct OperationScope {
  uint32_t clients = 4;
  uint32_t chunk_rows_max = 32;
  uint32_t context_tokens = 64;
  uint32_t budget_tokens = 128;
};

// Equal seeds give equal lists.
std::vector<Operation> RandomOperations(uint64_t seed, size_t count, const OperationScope& scope);
std::string TextOf(const std::vector<Operation>& operations);
// The shortest list found for which `fails` still holds. Gives up looking after a number of tries.
std::vector<Operation> Shrink(std::vector<Operation> operations, const std::function<bool(const std::vector<Operation>&)>& fails);

}  // namespace meshnet::differential
