#include "cli/split_choice.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace meshnet::cli {
namespace {

// The heaviest stage, then the squares, so that the light stages are even too.
using Score = std::pair<double, double>;
constexpr Score kImpossible = {std::numeric_limits<double>::infinity(), 0};

std::vector<double> WeightUpTo(const gguf::ModelShape& shape, uint64_t output_bytes) {
  std::vector<double> sums(shape.layer_count + 1, 0.0);
  for (uint32_t i = 0; i < shape.layer_count; ++i) {
    double bytes = i < shape.layers.size() ? static_cast<double>(shape.layers[i].weight_bytes) : 1.0;
    if (i + 1 == shape.layer_count) bytes += static_cast<double>(output_bytes);
    sums[i + 1] = sums[i] + bytes;
  }
  return sums;
}

}  // namespace

Result<std::vector<LayerRange>> ChooseRanges(const gguf::ModelShape& shape, const gguf::LegalCuts& legal, uint32_t shard_count, uint64_t output_bytes) {
  if (shard_count == 0 || shard_count > shape.layer_count) {
    return BadConfiguration("--shards " + std::to_string(shard_count) + ": " + shape.name + " has " + std::to_string(shape.layer_count) +
                            " layers, so 1 to " + std::to_string(shape.layer_count) + " shards");
  }
  if (legal.cuts.size() + 1 < shard_count) {
    std::string why = legal.reason.empty() ? "too few legal cuts" : legal.reason;
    return Refused(shape.architecture + " cannot be cut into " + std::to_string(shard_count) + " shards: it has " + std::to_string(legal.cuts.size()) +
                   " legal cuts (" + why + ")");
  }
  std::vector<uint32_t> borders = {0};
  for (uint32_t cut : legal.cuts) borders.push_back(cut);
  borders.push_back(shape.layer_count);
  std::vector<double> sums = WeightUpTo(shape, output_bytes);

  // best[k][i]: the first k stages end at borders[i].
  std::vector<std::vector<Score>> best(shard_count + 1, std::vector<Score>(borders.size(), kImpossible));
  std::vector<std::vector<size_t>> came_from(shard_count + 1, std::vector<size_t>(borders.size(), 0));
  best[0][0] = {0, 0};
  for (uint32_t stage = 1; stage <= shard_count; ++stage) {
    for (size_t end = 1; end < borders.size(); ++end) {
      for (size_t begin = 0; begin < end; ++begin) {
        if (best[stage - 1][begin] == kImpossible) continue;
        double bytes = sums[borders[end]] - sums[borders[begin]];
        Score score = {std::max(best[stage - 1][begin].first, bytes), best[stage - 1][begin].second + bytes * bytes};
        if (score >= best[stage][end]) continue;
        best[stage][end] = score;
        came_from[stage][end] = begin;
      }
    }
  }
  std::vector<LayerRange> ranges;
  size_t end = borders.size() - 1;
  for (uint32_t stage = shard_count; stage > 0; --stage) {
    size_t begin = came_from[stage][end];
    ranges.insert(ranges.begin(), LayerRange{borders[begin], borders[end]});
    end = begin;
  }
  return ranges;
}

uint64_t OutputBytes(const gguf::ModelFile& file) {
  const gguf::TensorInfo* output = file.FindTensor("output.weight");
  if (output == nullptr) output = file.FindTensor("token_embd.weight");
  return output == nullptr ? 0 : output->bytes;
}

}  // namespace meshnet::cli
