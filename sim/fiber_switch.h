// What a sanitizer wants to hear when the stack changes under it; nothing in a plain build. The build picks the file.
#pragma once

#include <cstddef>

namespace meshnet::sim {

// Before a switch to the stack at `bottom`. Returns what the matching SwitchEnds wants; with `leaving_for_ever` the old stack is not used again.
void* SwitchBegins(const void* bottom, size_t size, bool leaving_for_ever);
// First thing on the stack that was switched to. `token`: of the SwitchBegins that left this stack; null on a fresh one.
void SwitchEnds(void* token, const void** old_bottom, size_t* old_size);

}  // namespace meshnet::sim
