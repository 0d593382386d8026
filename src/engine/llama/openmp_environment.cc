#include "engine/llama/openmp_environment.h"

#include <limits.h>
#include <unistd.h>

#include <cstdlib>

namespace meshnet {
namespace {

// Long enough to bridge the gap between two operators of one graph, far too short to fill the wait for another worker: 0.97 of one process's
// speed with two workers, against 0.50 with libgomp's default.
constexpr char kSpinCount[] = "10000";

}  // namespace

void EnsureOpenMpDoesNotSpin(char** argv) {
  if (std::getenv("GOMP_SPINCOUNT") || std::getenv("OMP_WAIT_POLICY")) return;
  // Set even when the new start fails, so that no second attempt follows and children have it.
  if (setenv("GOMP_SPINCOUNT", kSpinCount, 1) != 0) return;
  // By its real path when that still leads here, so that the process keeps its name.
  char path[PATH_MAX] = {};
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  if (length > 0) execv(path, argv);
  execv("/proc/self/exe", argv);
}

}  // namespace meshnet
