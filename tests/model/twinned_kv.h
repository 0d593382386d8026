// HotKv and its model side by side, behind HotKv's interface: every call goes to both. Every answer must be equal, and so must the whole state
// after it; what was refused has left it byte for byte as it was.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kv/hot_kv.h"
#include "kv_model.h"

namespace meshnet::kv {

class TwinnedKv {
 public:
  TwinnedKv(const HotKvConfig& config, const SequenceProbe& probe);

  OpenDecision Open(const OpenRequest& request, Time now);
  StepDecision Admit(const Step& step, const FieldsCheck& fields, Time now);
  std::optional<Execution> Start(const Ticket& ticket, Time now);
  Settled Settle(const Ticket& ticket, StepFate fate, std::shared_ptr<StepResult> result, std::string cause, Time now);
  std::vector<Dropped> Cancel(const SessionKey& key);
  Released Release(const SessionKey& key, Time now);
  Expired Expire(Time now);
  std::optional<Time> next_expiry() const { return kv_.next_expiry(); }
  void ConfirmRemoved(SequenceId sequence);
  void BeginDrain();
  Expired FinishDrain(Time now);
  void Poison();
  std::vector<Dropped> TakeDropped();
  ShardStats Stats(Time now);
  std::span<const Token> TokenLog(const SessionKey& key) const { return kv_.TokenLog(key); }
  const std::string& Snapshot() const { return snapshot_; }
  void CheckInvariants() const { kv_.CheckInvariants(); }

  const KvModel& model() const { return model_; }
  // Whether the last call changed what Snapshot tells.
  bool changed() const { return changed_; }
  // The first thing that was wrong; empty while all is well.
  const std::string& problem() const { return problem_; }
  // How much is compared at each call, for who makes millions of them.
  enum class Watch { kNothing, kAnswers, kEverything };
  void SetWatch(Watch watch) { watch_ = watch; }
  // Compares the whole state, and whether it is still what it was when this was last done.
  enum class State { kAny, kUnchanged };
  void CompareState(State state);

 private:
  template <typename Answer>
  void Compare(const Answer& machine, const Answer& model, bool unchanged = false);
  void AfterCall(bool unchanged);
  void Problem(const std::string& problem);

  HotKv kv_;
  KvModel model_;
  Watch watch_ = Watch::kEverything;
  bool changed_ = false;
  std::string snapshot_;
  std::string problem_;
};

}  // namespace meshnet::kv
