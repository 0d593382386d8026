// The last element of a sampler chain: draws f(seed, position, attempt) from what the chain has left.
#pragma once

#include <cstdint>

#include "llama.h"

namespace meshnet {

struct Draw {
  uint32_t seed = 0;
  uint32_t position = 0;
  uint32_t attempt = 0;   // counts up with each draw at a position
  bool nothing_left = false;  // every candidate was forbidden
};

// Borrows `draw`, which must outlive the sampler. To be given to llama_sampler_chain_add, which owns the result.
llama_sampler* CreateDrawSampler(Draw* draw);

// Sets probabilities and the selected index of the candidates.
void DrawFrom(llama_token_data_array& candidates, Draw& draw);

}  // namespace meshnet
