#include "base/system_clock.h"

#include <openssl/rand.h>

#include "base/check.h"

namespace meshnet {

void FillRandom(uint8_t* out, size_t count) { MESHNET_CHECK(RAND_bytes(out, static_cast<int>(count)) == 1); }

}  // namespace meshnet
