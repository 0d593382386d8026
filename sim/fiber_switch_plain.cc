#include "fiber_switch.h"

namespace meshnet::sim {

void* SwitchBegins(const void*, size_t, bool) { return nullptr; }
void SwitchEnds(void*, const void**, size_t*) {}

}  // namespace meshnet::sim
