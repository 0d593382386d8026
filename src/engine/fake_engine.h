// An Engine that runs a layer range of a FakeModel: exact positions, truncation classes and failures of a real one, in microseconds.
// It aborts on a call that breaks Engine's contract (wrong start, order of a batch, sequence out of range): that is the caller's bug.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "engine/engine.h"
#include "engine/fake_model.h"

namespace meshnet {

// The only grammar that CheckSampling refuses.
inline constexpr std::string_view kFakeBadGrammar = "root ::= (((";

struct FakeEngineOptions {
  FakeModel model;
  LayerRange range = {0, 6};
  uint32_t sessions_max = 8;
  uint32_t context_tokens = 4096;
  uint32_t budget_tokens = 32768;
  uint32_t chunk_rows_max = 512;
  TruncationClass truncation_class = TruncationClass::kFull;
  uint32_t window_tokens = 0;        // kWindow: must be above 0
  uint32_t window_slack_tokens = 0;  // kWindow: cells kept beyond the window; a real engine has about one micro-batch
  NumericsFingerprint numerics;      // context_tokens is filled in
  // Called on the engine thread at the start of each Run: observe, count or block there.
  std::function<void(std::span<const EngineStep>)> on_run;
};

// How one step fails. A sequence that is not given means whichever step runs next.
struct FakeFault {
  enum class Kind {
    kRolledBack,     // nothing happened
    kAskedTooMuch,   // nor here, and it is the request's fault
    kLost,           // the sequence is in an unknown state
    kNonFinite,      // a row was not finite: lost as well
    kTruncateFails,  // the next Truncate is not proven
  };
  Kind kind = Kind::kRolledBack;
  std::optional<SequenceId> sequence = std::nullopt;
};

struct FakeEngineCounts {
  uint64_t runs = 0;        // engine calls
  uint64_t steps = 0;       // that were done
  uint64_t tokens = 0;      // of steps that were done
  uint64_t removals = 0;
};

class FakeEngine : public Engine {
 public:
  explicit FakeEngine(FakeEngineOptions options);

  const EngineInfo& info() const override { return info_; }
  EngineMemory memory() const override;
  std::vector<EngineOutcome> Run(std::span<const EngineStep> steps) override;
  [[nodiscard]] bool Truncate(SequenceId sequence, PastLen keep) override;
  void Remove(SequenceId sequence) override;
  PastLen past_len(SequenceId sequence) const override;
  PastLen intact_from(SequenceId sequence) const override;
  Status CheckSampling(const SamplingParams& params) const override;

  // Thread-safe. Each fault strikes once, oldest first.
  void Inject(FakeFault fault);
  FakeEngineCounts counts() const;

  // The token log of a sequence as the engine was fed it. On the engine thread, or while it rests.
  std::span<const Token> tokens(SequenceId sequence) const;

 private:
  struct Sequence {
    std::vector<Token> tokens;
    std::vector<std::vector<FakeState>> states;  // [layer of the range][position]: what the layer held after that token
    PastLen intact_from;
    bool broken = false;  // lost, or a truncation was not proven: only Remove helps
  };

  Sequence& At(SequenceId sequence);
  const Sequence& At(SequenceId sequence) const;
  void CheckCall(std::span<const EngineStep> steps) const;
  EngineOutcome RunOne(const EngineStep& step);
  std::optional<EngineOutcome> Fail(const EngineStep& step);
  void Append(Sequence& sequence, const EngineStep& step, std::vector<FakeState>& last_states);
  EngineOutcome Outcome(const EngineStep& step, std::span<const FakeState> last_states) const;
  bool TakeFault(SequenceId sequence, bool truncating, FakeFault::Kind& kind);
  uint64_t cells_used() const;

  FakeEngineOptions options_;
  EngineInfo info_;
  std::vector<Sequence> sequences_;
  mutable std::mutex mutex_;  // guards the two below, which tests reach from other threads
  std::deque<FakeFault> faults_;
  FakeEngineCounts counts_;
};

}  // namespace meshnet
