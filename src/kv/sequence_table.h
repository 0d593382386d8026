// Which sequence of the engine belongs to whom, and how much of the budget it holds. A sequence has at most one owner (a live session) and at
// most one closing session, whose step the engine is still executing. When a session whose step executes is superseded, its successor takes
// over the same sequence: their cells are never held at once, so the sequence counts with the larger of the two reservations.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "base/ids.h"

namespace meshnet::kv {

class SequenceTable {
 public:
  SequenceTable(uint32_t count, uint32_t budget_tokens);

  // Gives the lowest free sequence to a new owner. There must be one, and room in the budget.
  SequenceId Take(uint32_t reserved_tokens);
  // Gives a sequence to a new owner while its closing session still executes.
  void TakeOver(SequenceId sequence, uint32_t reserved_tokens);
  // The owner ends; no step of it executes. True when the engine has to remove the sequence for that.
  [[nodiscard]] bool DropOwner(SequenceId sequence);
  // The owner ends while a step of it executes.
  void CloseOwner(SequenceId sequence);
  // That step is settled: the engine has to remove the sequence.
  void DropClosing(SequenceId sequence);
  // The engine reported the sequence empty.
  void ConfirmRemoved(SequenceId sequence);

  // The engine may run the owner's steps.
  bool startable(SequenceId sequence) const { return !At(sequence).closing && !At(sequence).removing; }
  bool closing(SequenceId sequence) const { return At(sequence).closing; }
  bool owned(SequenceId sequence) const { return At(sequence).owned; }
  bool removing(SequenceId sequence) const { return At(sequence).removing; }
  uint32_t reserved(SequenceId sequence) const { return At(sequence).reserved(); }
  uint32_t count() const { return static_cast<uint32_t>(slots_.size()); }
  uint32_t free_count() const { return static_cast<uint32_t>(free_.size()); }
  uint64_t reserved_tokens() const { return reserved_tokens_; }
  bool is_free(SequenceId sequence) const { return free_.contains(sequence); }

 private:
  struct Slot {
    bool owned = false;
    bool closing = false;
    bool removing = false;  // the engine owes a removal
    uint32_t owner_tokens = 0;
    uint32_t closing_tokens = 0;
    uint32_t reserved() const { return owner_tokens > closing_tokens ? owner_tokens : closing_tokens; }
  };
  Slot& At(SequenceId sequence);
  const Slot& At(SequenceId sequence) const;
  // Applies a change to a slot and keeps the sum and the free ids true.
  template <typename Change>
  void Update(SequenceId sequence, Change change);

  uint32_t budget_tokens_;
  uint64_t reserved_tokens_ = 0;
  std::vector<Slot> slots_;
  std::set<SequenceId> free_;
};

}  // namespace meshnet::kv
