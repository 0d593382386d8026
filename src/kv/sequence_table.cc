#include "kv/sequence_table.h"

#include "base/check.h"

namespace meshnet::kv {

SequenceTable::SequenceTable(uint32_t count, uint32_t budget_tokens) : budget_tokens_(budget_tokens), slots_(count) {
  for (uint32_t i = 0; i < count; ++i) free_.insert(SequenceId(static_cast<int32_t>(i)));
}

SequenceTable::Slot& SequenceTable::At(SequenceId sequence) {
  // A negative id would mean every sequence to the engine.
  MESHNET_CHECK(sequence.value >= 0 && static_cast<size_t>(sequence.value) < slots_.size());
  return slots_[static_cast<size_t>(sequence.value)];
}

const SequenceTable::Slot& SequenceTable::At(SequenceId sequence) const { return const_cast<SequenceTable*>(this)->At(sequence); }

template <typename Change>
void SequenceTable::Update(SequenceId sequence, Change change) {
  Slot& slot = At(sequence);
  reserved_tokens_ -= slot.reserved();
  change(slot);
  reserved_tokens_ += slot.reserved();
  MESHNET_CHECK(reserved_tokens_ <= budget_tokens_);
  if (slot.owned || slot.closing) {
    free_.erase(sequence);
  } else {
    free_.insert(sequence);
  }
}

SequenceId SequenceTable::Take(uint32_t reserved_tokens) {
  MESHNET_CHECK(!free_.empty());
  const SequenceId sequence = *free_.begin();
  Update(sequence, [&](Slot& slot) {
    slot.owned = true;
    slot.owner_tokens = reserved_tokens;
  });
  return sequence;
}

void SequenceTable::TakeOver(SequenceId sequence, uint32_t reserved_tokens) {
  Update(sequence, [&](Slot& slot) {
    MESHNET_CHECK(slot.closing && !slot.owned);
    slot.owned = true;
    slot.owner_tokens = reserved_tokens;
  });
}

bool SequenceTable::DropOwner(SequenceId sequence) {
  bool must_remove = false;
  Update(sequence, [&](Slot& slot) {
    MESHNET_CHECK(slot.owned);
    slot.owned = false;
    slot.owner_tokens = 0;
    // While a closing session or an owed removal stands before it, the owner has never reached the engine.
    must_remove = !slot.closing && !slot.removing;
    if (must_remove) slot.removing = true;
  });
  return must_remove;
}

void SequenceTable::CloseOwner(SequenceId sequence) {
  Update(sequence, [](Slot& slot) {
    MESHNET_CHECK(slot.owned && !slot.closing && !slot.removing);
    slot.owned = false;
    slot.closing = true;
    slot.closing_tokens = slot.owner_tokens;
    slot.owner_tokens = 0;
  });
}

void SequenceTable::DropClosing(SequenceId sequence) {
  Update(sequence, [](Slot& slot) {
    MESHNET_CHECK(slot.closing && !slot.removing);
    slot.closing = false;
    slot.closing_tokens = 0;
    slot.removing = true;
  });
}

void SequenceTable::ConfirmRemoved(SequenceId sequence) {
  Slot& slot = At(sequence);
  MESHNET_CHECK(slot.removing);
  slot.removing = false;
}

}  // namespace meshnet::kv
