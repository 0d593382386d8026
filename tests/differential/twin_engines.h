// The two engines that go through the same operations: the real one, with large finite values in every cell that nobody owns, and the fake, which
// is told of the misfortunes that a test brought about.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "differential/llama_cells.h"
#include "engine/fake_engine.h"
#include "engine/llama/llama_engine.h"

namespace meshnet::differential {

// The embedding of this one is not finite (PoisonToken).
inline constexpr Token kPoison = 200;

// What befalls the next engine call, and what the real engine made of it.
struct Misfortune {
  uint32_t break_at = 0;                  // the computation ends at its n-th node; 0: not
  bool struck = false;
  std::vector<SequenceId> unproven_cuts;  // of the real engine, since the fake was last asked
  std::vector<EngineFate> fates;          // of the real engine's last call

  // For EngineFaultHook.
  static bool Abort(void* self) {
    auto& misfortune = *static_cast<Misfortune*>(self);
    if (misfortune.break_at == 0 || --misfortune.break_at > 0) return false;
    return misfortune.struck = true;
  }
};

class RealTwin : public Engine {
 public:
  // With `fills` false free cells keep what their owners left in them.
  RealTwin(std::unique_ptr<LlamaEngine> engine, Misfortune& misfortune, bool fills)
      : engine_(std::move(engine)), cells_(*engine_), misfortune_(misfortune), fills_(fills) {}

  const EngineInfo& info() const override { return engine_->info(); }
  EngineMemory memory() const override { return engine_->memory(); }
  std::vector<EngineOutcome> Run(std::span<const EngineStep> steps) override;
  [[nodiscard]] bool Truncate(SequenceId sequence, PastLen keep) override;
  void Remove(SequenceId sequence) override;
  PastLen past_len(SequenceId sequence) const override { return engine_->past_len(sequence); }
  PastLen intact_from(SequenceId sequence) const override { return engine_->intact_from(sequence); }
  Status CheckSampling(const SamplingParams& params) const override { return engine_->CheckSampling(params); }

  const LlamaCells& cells() const { return cells_; }
  uint64_t lane_exchanges() const { return engine_->lane_exchanges(); }
  uint64_t filled_rows() const { return filled_rows_; }
  uint64_t cuts() const { return cuts_; }

 private:
  const std::unique_ptr<LlamaEngine> engine_;
  LlamaCells cells_;
  void Fill() { filled_rows_ += fills_ ? cells_.FillFree() : 0; }

  Misfortune& misfortune_;
  const bool fills_;
  uint64_t filled_rows_ = 0;
  uint64_t cuts_ = 0;
};

// Foretells what each misfortune does, but where llama.cpp alone decides: which session of a call was at work when it broke off, where that makes a
// difference; and with `shared_windows`, when windows of several sessions share cells, whose cells are recycled.
class FakeTwin : public FakeEngine {
 public:
  FakeTwin(FakeEngineOptions options, const RealTwin& real, Misfortune& misfortune, bool shared_windows)
      : FakeEngine(std::move(options)), real_(real), misfortune_(misfortune), shared_windows_(shared_windows) {}

  std::vector<EngineOutcome> Run(std::span<const EngineStep> steps) override;
  [[nodiscard]] bool Truncate(SequenceId sequence, PastLen keep) override;
  // The real one's: when a window's cells are recycled is llama.cpp's choice, and a decision follows it.
  PastLen intact_from(SequenceId sequence) const override { return real_.intact_from(sequence); }
  PastLen own_intact_from(SequenceId sequence) const { return FakeEngine::intact_from(sequence); }

 private:
  void Foretell(std::span<const EngineStep> steps);
  void Repeat(std::span<const EngineStep> steps);

  const RealTwin& real_;
  Misfortune& misfortune_;
  const bool shared_windows_;
};

// Makes the embedding of kPoison infinite in a model file of q8_0 or f32.
Status PoisonToken(const std::string& path);

}  // namespace meshnet::differential
