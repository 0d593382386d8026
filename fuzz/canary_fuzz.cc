// A fault that is there on purpose, one flipped bit beyond its corpus: whoever runs the fuzzers must find it.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  MESHNET_CHECK(size < 4 || std::memcmp(data, "BOOM", 4) != 0);
  return 0;
}
