// llama.cpp computes with OpenMP, whose threads spin between two computations. Workers of one host take turns, so a waiting worker would burn
// the cores of the computing one and halve its speed (docs/engine.md).
#pragma once

namespace meshnet {

// To be called first in main(), before any thread: libgomp reads its environment when it is loaded, so without GOMP_SPINCOUNT (or a choice of
// the user's: OMP_WAIT_POLICY) in it the program is started once more with it, under the same process id. Returns when nothing needs to be
// done, or when the program cannot be started again, which costs speed and nothing else.
void EnsureOpenMpDoesNotSpin(char** argv);

}  // namespace meshnet
