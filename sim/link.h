// The way from one gateway to one worker, as a ShardLink: through the wire's form and its checks, with everything a network does in between.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "meshnet/shard/v1/shard.pb.h"
#include "process_time.h"
#include "protocol/shard_link.h"
#include "worker.h"
#include "world.h"

namespace meshnet::sim {

class Link : public ShardLink {
 public:
  // All outlive the link, and the link outlives every event of the run.
  Link(World& world, Place gateway, ProcessTime& caller, Worker& worker);
  ~Link() override;

  void Describe(Time deadline, Done<ShardDescription> done) override;
  void Open(OpenRequest request, Time deadline, Done<OpenReply> done) override;
  void Forward(const Step& step, Time deadline, Done<StepResult> done) override;
  void Cancel(SessionKey key) override;
  void Release(SessionKey key, Time deadline, Done<ReleaseOutcome> done) override;
  void Stats(Time deadline, Done<ShardStats> done) override;
  void Drain(Time deadline, Done<ShardState> done) override;
  std::string address() const override;

  // What strikes. Nothing goes through for a while, in one direction or both.
  void Cut(bool requests, bool replies, Duration duration);
  void BreakStream();
  // The gateway is dead: it says nothing and hears nothing any more.
  void Sever();
  // Something that was sent before arrives once more.
  void ReplayOld();
  // A step that was sent before arrives with another number, place, epoch, process, prefix or content.
  void Forge();
  // Every step that reached the core was answered.
  void CheckAnswered();
  void Heal();

 private:
  struct Call {
    virtual ~Call() = default;
    virtual void Fail(std::string why) = 0;
    EventLoop::Id timer;
    uint64_t stream = 0;  // 0: unary
  };
  template <typename T>
  struct CallOf : Call {
    explicit CallOf(Done<T> d) : done(std::move(d)) {}
    void Fail(std::string why) override { done(TransportFault{std::move(why)}); }
    Done<T> done;
  };
  class Stream;
  enum class Lane { kUnary, kStream };
  struct Sent {
    Trace::Event event;
    std::function<void()> arrive;
    std::shared_ptr<const shard::v1::Step> step;  // shared by the times it arrives; null: something else
  };
  // A step at the core, until it is answered.
  struct Arrival {
    uint64_t call = 0;  // 0: nobody waits for it
    uint64_t stream = 0;
    SentStep step;
  };

  template <typename T>
  uint64_t Register(Time deadline, Done<T> done, Lane lane);
  void Send(Lane lane, uint64_t call, Sent sent);
  void ArriveStep(uint64_t call, const std::shared_ptr<const shard::v1::Step>& wire, const SentStep& step, const std::shared_ptr<Stream>& stream);
  void Submit(uint64_t call, IncomingStep incoming, const SentStep& step, const std::shared_ptr<Stream>& stream);
  void Alter(Step& step);
  // One arrival at the worker's address.
  void Arrive(Time when, const Sent& sent);
  // A unary call on a shard that serves. `ask` makes the reply on the worker's side.
  template <typename T>
  void Ask(uint64_t call, std::function<Reply<T>(ShardCore&)> ask, Trace::Event (*describe)(const T&));
  template <typename T>
  void Answer(uint64_t call, Lane lane, Reply<T> reply, Trace::Event (*describe)(const T&));
  void AnswerSteps(uint64_t stream, std::vector<StepAnswer> answers);
  void NoteEngineFailure(const SentStep& step, const StepAnswer& answer);
  template <typename T>
  void Deliver(uint64_t call, Reply<T> reply, Trace::Event event);
  // Its caller hears that the call has failed, after a while.
  void FailLater(uint64_t call, const char* why);
  void Fail(uint64_t call, const char* why);
  void FailAll(bool only_stream, const char* why);
  void PeerDied(bool heard);
  bool IsOrdered(Lane lane) const { return lane == Lane::kStream && (world_.swarm.link.order_kept || world_.healed); }
  void Lose(Lane lane, uint64_t call, Trace::Event event, bool cut, bool& deaf);
  void NewStream();
  Duration Latency();
  Trace::Event EventOf(What what) const { return {what, gateway_, worker_.place(), {}}; }

  World& world_;
  const Place gateway_;
  ProcessTime& caller_;
  Worker& worker_;
  std::map<uint64_t, std::unique_ptr<Call>> calls_;
  uint64_t next_call_ = 1;
  std::map<uint64_t, Arrival> arrivals_;
  uint64_t next_arrival_ = 1;
  std::map<SessionKey, SentStep> newest_;  // step of each session
  uint64_t streams_ = 0;
  std::shared_ptr<Stream> stream_;  // shared with the core, which answers to it
  Time requests_cut_until_{}, replies_cut_until_{};
  Time last_request_{}, last_reply_{};  // of the stream, which keeps its order
  bool deaf_to_requests_ = false;       // of the stream: something was lost, and so is all that follows, until both ends notice
  bool deaf_to_replies_ = false;
  bool severed_ = false;
  std::vector<Sent> old_;               // a ring of what was sent
  size_t old_next_ = 0;
};

}  // namespace meshnet::sim
