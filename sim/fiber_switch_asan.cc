#include <sanitizer/common_interface_defs.h>

#include "fiber_switch.h"

namespace meshnet::sim {

void* SwitchBegins(const void* bottom, size_t size, bool leaving_for_ever) {
  void* token = nullptr;
  __sanitizer_start_switch_fiber(leaving_for_ever ? nullptr : &token, bottom, size);
  return token;
}

void SwitchEnds(void* token, const void** old_bottom, size_t* old_size) { __sanitizer_finish_switch_fiber(token, old_bottom, old_size); }

}  // namespace meshnet::sim
