#include "engine/llama/draw_sampler.h"

#include <algorithm>
#include <cmath>

#include "engine/llama/counter_random.h"

namespace meshnet {

void DrawFrom(llama_token_data_array& candidates, Draw& draw) {
  candidates.selected = 0;
  float highest = -INFINITY;
  for (size_t i = 0; i < candidates.size; ++i) highest = std::max(highest, candidates.data[i].logit);
  if (!std::isfinite(highest)) {
    draw.nothing_left = true;
    return;
  }
  double sum = 0;
  for (size_t i = 0; i < candidates.size; ++i) sum += std::exp(static_cast<double>(candidates.data[i].logit) - highest);
  const double target = UniformAt(draw.seed, draw.position, draw.attempt++) * sum;
  double passed = 0;
  bool chosen = false;
  for (size_t i = 0; i < candidates.size; ++i) {
    const double weight = std::exp(static_cast<double>(candidates.data[i].logit) - highest);
    passed += weight;
    // The last possible candidate stands when rounding leaves the sum just below the target.
    if (!chosen && weight > 0) candidates.selected = static_cast<int64_t>(i);
    chosen = chosen || passed > target;
    candidates.data[i].p = static_cast<float>(weight / sum);
  }
}

llama_sampler* CreateDrawSampler(Draw* draw) {
  static llama_sampler_i interface = [] {
    llama_sampler_i made = {};
    made.name = [](const llama_sampler*) { return "draw"; };
    made.apply = [](llama_sampler* sampler, llama_token_data_array* candidates) { DrawFrom(*candidates, *static_cast<Draw*>(sampler->ctx)); };
    made.free = [](llama_sampler*) {};
    return made;
  }();
  return llama_sampler_init(&interface, draw);
}

}  // namespace meshnet
