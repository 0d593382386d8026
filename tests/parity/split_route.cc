#include "parity/split_route.h"

#include <algorithm>
#include <utility>

#include "engine/llama/counter_random.h"
#include "engine/llama/llama_shard_engine.h"
#include "gguf/cut_plan.h"
#include "gguf/model_file.h"
#include "gguf/model_shape.h"
#include "gguf/shard_file.h"

namespace meshnet::parity {
namespace {

Result<std::string> WriteOneShard(const gguf::ModelFile& file, const gguf::ModelShape& shape, const gguf::Manifest& manifest, LayerRange range,
                                  const std::string& folder) {
  Result<gguf::ShardPlan> plan = gguf::PlanShard(file, shape, range);
  if (!plan.ok()) return plan.status();
  const std::string path = folder + "/layers-" + std::to_string(range.begin) + "-" + std::to_string(range.end) + ".gguf";
  Result<gguf::WrittenShard> written = gguf::WriteShard(file, *plan, manifest, path, gguf::Overwrite::kForce, [](uint64_t, uint64_t) {});
  if (!written.ok()) return written.status();
  return path;
}

Result<std::vector<std::string>> WriteShards(const std::string& model_path, const std::vector<uint32_t>& cuts, const std::string& folder) {
  Result<gguf::ModelFile> file = gguf::ModelFile::Open(model_path);
  if (!file.ok()) return file.status();
  Result<gguf::ModelShape> shape = gguf::ReadModelShape(*file);
  if (!shape.ok()) return shape.status();
  Result<gguf::Manifest> manifest = gguf::BuildManifest(*file, [](uint64_t, uint64_t) {});
  if (!manifest.ok()) return manifest.status();
  Result<std::vector<LayerRange>> ranges = gguf::RangesOfCuts(*shape, cuts);
  if (!ranges.ok()) return ranges.status();
  std::vector<std::string> paths;
  for (LayerRange range : *ranges) {
    Result<std::string> path = WriteOneShard(*file, *shape, *manifest, range, folder);
    if (!path.ok()) return path.status();
    paths.push_back(*path);
  }
  return paths;
}

}  // namespace

Result<SplitRoute> SplitRoute::Create(const std::string& model_path, const std::vector<uint32_t>& cuts, const EngineOptions& options,
                                      const std::string& folder) {
  std::vector<std::string> paths = {model_path};
  if (!cuts.empty()) {
    Result<std::vector<std::string>> written = WriteShards(model_path, cuts, folder);
    if (!written.ok()) return written.status();
    paths = *written;
  }
  SplitRoute route;
  for (const std::string& path : paths) {
    EngineOptions shard = options;
    shard.shard_path = path;
    Result<std::unique_ptr<Engine>> engine = CreateLlamaShardEngine(shard);
    if (!engine.ok()) return engine.status();
    route.stages_.push_back(std::move(*engine));
  }
  return route;
}

Result<std::vector<EngineOutcome>> SplitRoute::Run(const std::vector<RouteStep>& steps) {
  std::vector<HiddenState> hidden(steps.size());
  std::vector<EngineOutcome> outcomes;
  for (size_t i = 0; i < stages_.size(); ++i) {
    const bool tail = i + 1 == stages_.size();
    std::vector<EngineStep> calls;
    for (size_t k = 0; k < steps.size(); ++k) {
      EngineStep call = {.sequence = steps[k].sequence, .start = stages_[i]->past_len(steps[k].sequence), .tokens = steps[k].tokens};
      call.input = i == 0 ? nullptr : &hidden[k];
      call.logits_wanted = tail && steps[k].logits_wanted;
      call.sampling = tail ? steps[k].sampling : nullptr;
      calls.push_back(call);
    }
    outcomes = stages_[i]->Run(calls);
    for (size_t k = 0; k < steps.size(); ++k) {
      if (outcomes[k].fate != EngineFate::kDone) return Failure("stage " + std::to_string(i) + ": " + outcomes[k].cause);
      if (!tail) hidden[k] = std::move(outcomes[k].output);
    }
  }
  return outcomes;
}

Result<EngineOutcome> SplitRoute::Run(RouteStep step) {
  std::vector<RouteStep> steps;
  steps.push_back(std::move(step));
  Result<std::vector<EngineOutcome>> outcomes = Run(steps);
  if (!outcomes.ok()) return outcomes.status();
  return std::move(outcomes->front());
}

Result<std::vector<float>> SplitRoute::Prefill(SequenceId sequence, std::span<const Token> tokens, uint32_t chunk) {
  std::vector<float> logits;
  for (size_t begin = 0; begin < tokens.size(); begin += chunk) {
    const std::span<const Token> part = tokens.subspan(begin, std::min<size_t>(chunk, tokens.size() - begin));
    Result<EngineOutcome> outcome = Run({.sequence = sequence, .tokens = {part.begin(), part.end()}});
    if (!outcome.ok()) return outcome.status();
    logits.insert(logits.end(), outcome->output.values().begin(), outcome->output.values().end());
  }
  return logits;
}

bool SplitRoute::Truncate(SequenceId sequence, PastLen keep) {
  return std::all_of(stages_.begin(), stages_.end(), [&](const auto& stage) { return stage->Truncate(sequence, keep); });
}

void SplitRoute::Remove(SequenceId sequence) {
  for (const auto& stage : stages_) stage->Remove(sequence);
}

std::vector<Token> RandomTokens(size_t count, uint32_t vocabulary, uint64_t seed) {
  std::vector<Token> tokens(count);
  for (size_t i = 0; i < count; ++i) tokens[i] = static_cast<Token>(MixBits(seed * 1000003 + i) % vocabulary);
  return tokens;
}

}  // namespace meshnet::parity
