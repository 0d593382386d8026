// The worker's side of one Forward stream. Used by shard_service only.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "meshnet/shard/v1/shard.grpc.pb.h"
#include "worker/answer_sink.h"
#include "worker/shard_host.h"

namespace meshnet {

class StepStream : public grpc::ServerBidiReactor<shard::v1::ForwardRequest, shard::v1::ForwardReply>,
                   public StepAnswerSink,
                   public std::enable_shared_from_this<StepStream> {
 public:
  // Alive until gRPC is done with it and the host holds no step of it any more. `streams` counts the open ones.
  static StepStream* Start(ShardHost& host, const Clock& clock, std::atomic<int>& streams, grpc::CallbackServerContext& context);

  void OnAnswers(std::vector<StepAnswer> answers) override;

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  struct Pending {
    shard::v1::ForwardReply message;
    uint64_t bytes = 0;
  };
  // Which operation a thread may start after it has left the lock.
  enum class Next { kNothing, kWrite, kFinish };

  StepStream(ShardHost& host, const Clock& clock, std::atomic<int>& streams, grpc::CallbackServerContext& context)
      : host_(host), clock_(clock), streams_(streams), context_(context) {}

  void Receive();
  void ReadOn();
  void Queue(std::vector<StepAnswer> answers);
  bool HasRoom();
  Next Decide();
  void Pump();

  ShardHost& host_;
  const Clock& clock_;
  std::atomic<int>& streams_;
  grpc::CallbackServerContext& context_;
  std::shared_ptr<StepStream> self_;    // until OnDone
  shard::v1::ForwardRequest incoming_;  // touched by the read reaction only
  shard::v1::ForwardReply outgoing_;    // the write in flight

  std::mutex mutex_;  // guards all below
  std::deque<Pending> pending_;
  uint64_t pending_bytes_ = 0;
  size_t unanswered_ = 0;    // steps that came in and are not answered yet
  int starting_ = 0;         // threads that are inside a Start… call: the stream must not be finished under them
  bool writing_ = false;
  bool no_more_reads_ = false;
  bool cancelled_ = false;
  bool finished_ = false;
};

}  // namespace meshnet
