// The client's side of one Forward stream: one outstanding write, what queues behind it coalesced. Used by shard_grpc_client only.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include "meshnet/shard/v1/shard.grpc.pb.h"

namespace meshnet {

class ForwardStream : public grpc::ClientBidiReactor<shard::v1::ForwardRequest, shard::v1::ForwardReply> {
 public:
  class Owner {
   public:
    virtual ~Owner() = default;
    // On a gRPC thread, in the order of the stream, no lock held.
    virtual void OnMessage(shard::v1::ForwardReply& message) = 0;
    // No step may be sent on it any more; its answers are over. `OnEnded` follows.
    virtual void OnBroken(uint64_t number) = 0;
    // The last call: from here on the stream may be destroyed, though not by this very thread.
    virtual void OnEnded(uint64_t number, const grpc::Status& status) = 0;
  };

  // `owner` outlives the stream. Start once.
  ForwardStream(Owner& owner, uint64_t number, shard::v1::Shard::Stub& stub);

  // All thread-safe. What is queued leaves in the order of the calls, at the next Pump or end of a write; nothing happens on a broken stream.
  void Queue(shard::v1::Step step);
  void QueueCancel(shard::v1::CancelSteps cancel);
  void Pump();
  void Start();
  // Breaks the stream from this side.
  void Abort() { context_.TryCancel(); }
  uint64_t number() const { return number_; }

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  struct Pending {
    shard::v1::ForwardRequest message;
    uint64_t bytes = 0;
  };

  Pending& TailFor(uint64_t bytes);

  Owner& owner_;
  const uint64_t number_;
  grpc::ClientContext context_;
  shard::v1::ForwardReply incoming_;   // touched by the read reaction only
  shard::v1::ForwardRequest outgoing_; // the write in flight; touched by its owner only

  std::mutex mutex_;  // guards all below
  std::deque<Pending> pending_;
  bool writing_ = false;
  int starting_writes_ = 0;  // threads inside StartWrite: the hold must outlive them
  bool broken_ = false;
  bool hold_released_ = false;
};

}  // namespace meshnet
