// For tests: a ShardLink that answers each call at once, on the calling thread, with what the test's functions say.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "protocol/shard_link.h"

namespace meshnet {

// Thread-safe when the functions are. A function that is not set answers with a TransportFault.
class ScriptedLink : public ShardLink {
 public:
  explicit ScriptedLink(std::string address) : address_(std::move(address)) {}

  std::function<Reply<ShardDescription>()> on_describe;
  std::function<Reply<OpenReply>(const OpenRequest&)> on_open;
  std::function<Reply<StepResult>(const Step&)> on_forward;
  std::function<void(const SessionKey&)> on_cancel;
  std::function<Reply<ReleaseOutcome>(const SessionKey&)> on_release;
  // Given the answer to each step, to be called once; absent: it is answered within the call.
  std::function<void(std::function<void()>)> later;

  void Describe(Time, Done<ShardDescription> done) override { done(on_describe ? on_describe() : Silence()); }
  void Open(OpenRequest request, Time, Done<OpenReply> done) override {
    done(on_open ? on_open(request) : Reply<OpenReply>(Silence()));
  }
  void Forward(const Step& step, Time, Done<StepResult> done) override {
    Reply<StepResult> reply = on_forward ? on_forward(step) : Reply<StepResult>(Silence());
    if (!later) return done(std::move(reply));
    later([done = std::move(done), held = std::make_shared<Reply<StepResult>>(std::move(reply))] { done(std::move(*held)); });
  }
  void Cancel(SessionKey key) override {
    if (on_cancel) on_cancel(key);
  }
  void Release(SessionKey key, Time, Done<ReleaseOutcome> done) override {
    done(on_release ? on_release(key) : Reply<ReleaseOutcome>(Silence()));
  }
  void Stats(Time, Done<ShardStats> done) override { done(Silence()); }
  void Drain(Time, Done<ShardState> done) override { done(Silence()); }
  std::string address() const override { return address_; }

 private:
  static TransportFault Silence() { return {"scripted silence"}; }

  const std::string address_;
};

}  // namespace meshnet
