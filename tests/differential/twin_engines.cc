#include "differential/twin_engines.h"

#include <algorithm>
#include <fstream>

#include "gguf/ggml_types.h"
#include "gguf/model_file.h"

namespace meshnet::differential {

std::vector<EngineOutcome> RealTwin::Run(std::span<const EngineStep> steps) {
  std::vector<EngineOutcome> outcomes = engine_->Run(steps);
  misfortune_.fates.clear();
  for (const EngineOutcome& outcome : outcomes) misfortune_.fates.push_back(outcome.fate);
  Fill();
  return outcomes;
}

bool RealTwin::Truncate(SequenceId sequence, PastLen keep) {
  const bool proven = engine_->Truncate(sequence, keep);
  if (!proven) misfortune_.unproven_cuts.push_back(sequence);
  ++cuts_;
  Fill();
  return proven;
}

void RealTwin::Remove(SequenceId sequence) {
  engine_->Remove(sequence);
  Fill();
}

void FakeTwin::Foretell(std::span<const EngineStep> steps) {
  const bool whole = info().truncation_class == TruncationClass::kWhole;
  // In mode exact a ring of cells keeps its order for sure only if nothing is taken out of it.
  const bool ring = info().numerics.mode == NumericsMode::kExact && real_.cells().window_cells() > 0;
  for (const EngineStep& step : steps) {
    const bool goes_back = (!whole || step.start.value == 0) && !ring;
    if (misfortune_.struck && (steps.size() == 1 || ring)) {
      Inject({.kind = goes_back ? FakeFault::Kind::kRolledBack : FakeFault::Kind::kLost, .sequence = step.sequence});
    } else if (std::ranges::find(step.tokens, kPoison) != step.tokens.end()) {
      Inject({.kind = FakeFault::Kind::kNonFinite, .sequence = step.sequence});
    }
  }
}

void FakeTwin::Repeat(std::span<const EngineStep> steps) {
  for (size_t i = 0; i < steps.size() && misfortune_.fates.size() == steps.size(); ++i) {
    if (misfortune_.fates[i] == EngineFate::kDone) continue;
    Inject({.kind = misfortune_.fates[i] == EngineFate::kLost ? FakeFault::Kind::kLost : FakeFault::Kind::kRolledBack, .sequence = steps[i].sequence});
  }
}

std::vector<EngineOutcome> FakeTwin::Run(std::span<const EngineStep> steps) {
  const bool poison = std::ranges::any_of(steps, [](const EngineStep& step) { return std::ranges::find(step.tokens, kPoison) != step.tokens.end(); });
  const bool several = misfortune_.struck && steps.size() > 1 && (poison || info().truncation_class == TruncationClass::kWhole);
  if (shared_windows_ || several) {
    Repeat(steps);
  } else {
    Foretell(steps);
  }
  return FakeEngine::Run(steps);
}

bool FakeTwin::Truncate(SequenceId sequence, PastLen keep) {
  const auto unproven = std::ranges::find(misfortune_.unproven_cuts, sequence);
  if (shared_windows_ && unproven != misfortune_.unproven_cuts.end()) {
    Inject({.kind = FakeFault::Kind::kTruncateFails, .sequence = sequence});
    misfortune_.unproven_cuts.erase(unproven);
  }
  return FakeEngine::Truncate(sequence, keep);
}

Status PoisonToken(const std::string& path) {
  constexpr uint64_t kBlockTokens = 32, kBlockBytes = 34;  // q8_0: a scale in f16, then the bytes it multiplies
  Result<gguf::ModelFile> file = gguf::ModelFile::Open(path);
  if (!file.ok()) return file.status();
  const gguf::TensorInfo* embedding = file->FindTensor("token_embd.weight");
  if (!embedding) return Failure("no embedding");
  const bool plain = embedding->type == gguf::kTypeF32;
  const uint64_t count = plain ? embedding->dims[0] : embedding->dims[0] / kBlockTokens;
  const uint64_t bytes = plain ? sizeof(float) : kBlockBytes;
  const std::string infinity = plain ? std::string("\x00\x00\x80\x7f", 4) : std::string("\x00\x7c", 2);
  std::fstream out(path, std::ios::in | std::ios::out | std::ios::binary);
  for (uint64_t i = 0; i < count; ++i) {
    out.seekp(static_cast<std::streamoff>(embedding->offset + (kPoison * count + i) * bytes));
    out.write(infinity.data(), static_cast<std::streamsize>(infinity.size()));
  }
  out.close();
  return out ? OkStatus() : Failure("not written");
}

}  // namespace meshnet::differential
