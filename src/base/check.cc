#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace meshnet {

void CheckFailed(const char* claim, const char* file, int line) {
  std::fprintf(stderr, "meshnet: broken invariant: %s (%s:%d)\n", claim, file, line);
  std::fflush(stderr);
  std::abort();
}

}  // namespace meshnet
