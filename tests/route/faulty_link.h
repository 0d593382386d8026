// A ShardLink that loses, repeats, delays and reorders what goes through it, by a seed, and can be killed and given a new process behind it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "protocol/shard_link.h"

namespace meshnet {

// Chances of one call, in thousandths.
struct FaultRates {
  uint32_t drop = 0;        // never arrives
  uint32_t lose_reply = 0;  // is done, the answer is lost
  uint32_t repeat = 0;      // arrives twice, the second time before or after the answer
  uint32_t delay = 0;       // its answer comes later than those after it
};

class FaultyLink : public ShardLink {
 public:
  // `inner` may be replaced; whatever it is outlives the link or its replacement.
  FaultyLink(ShardLink* inner, std::string address, uint64_t seed, FaultRates rates = {});
  ~FaultyLink() override;

  // All that is outstanding and all that follows ends as a TransportFault, until Revive.
  void Kill();
  void Revive(ShardLink* inner);
  // Called with the number of each Forward (from 1), before anything happens to it, with no lock held.
  void OnForward(std::function<void(uint64_t)> hook);
  // Called with each Describe that meets a dead link, with no lock held: the place to revive it.
  void OnDescribeDead(std::function<void()> hook);
  // Called with each Cancel, before anything happens to it, with no lock held.
  void OnCancel(std::function<void()> hook);
  uint64_t faults() const;

  void Describe(Time deadline, Done<ShardDescription> done) override;
  void Open(OpenRequest request, Time deadline, Done<OpenReply> done) override;
  void Forward(const Step& step, Time deadline, Done<StepResult> done) override;
  void Cancel(SessionKey key) override;
  void Release(SessionKey key, Time deadline, Done<ReleaseOutcome> done) override;
  void Stats(Time deadline, Done<ShardStats> done) override;
  void Drain(Time deadline, Done<ShardState> done) override;
  std::string address() const override { return address_; }

 private:
  enum class Fate { kPass, kDead, kDrop, kLoseReply, kRepeatBefore, kRepeatAfter, kDelay };
  struct Shared;  // with the callbacks of `inner`, which may come after Kill

  template <typename T>
  Done<T> Track(Done<T> done, Fate fate);
  Fate Draw();
  ShardLink* inner() const;

  const std::string address_;
  const FaultRates rates_;
  std::shared_ptr<Shared> shared_;
  std::thread postman_;
};

}  // namespace meshnet
