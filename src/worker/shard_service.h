// The gRPC face of a ShardHost: validates what comes in, coalesces the answers of one engine call into one message, bounds every queue.
#pragma once

#include <atomic>
#include <memory>

#include <grpcpp/grpcpp.h>

#include "meshnet/shard/v1/shard.grpc.pb.h"
#include "worker/shard_host.h"

namespace meshnet {

inline constexpr int kForwardStreamsMax = 256;
// Answers that a stream's reader has not taken yet; beyond it the stream is cut off, so that it delays nobody else. Its results stay recorded.
inline constexpr uint64_t kUnreadAnswerBytesMax = 64u << 20;

class ShardService : public shard::v1::Shard::CallbackService {
 public:
  // `host` outlives the service and every call of it.
  ShardService(ShardHost& host, const Clock& clock) : host_(host), clock_(clock) {}

  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* context, const shard::v1::DescribeRequest* request,
                                     shard::v1::DescribeReply* reply) override;
  grpc::ServerUnaryReactor* Open(grpc::CallbackServerContext* context, const shard::v1::OpenRequest* request, shard::v1::OpenReply* reply) override;
  grpc::ServerUnaryReactor* Release(grpc::CallbackServerContext* context, const shard::v1::ReleaseRequest* request,
                                    shard::v1::ReleaseReply* reply) override;
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context, const shard::v1::DrainRequest* request, shard::v1::DrainReply* reply) override;
  grpc::ServerUnaryReactor* Stats(grpc::CallbackServerContext* context, const shard::v1::StatsRequest* request, shard::v1::StatsReply* reply) override;
  grpc::ServerBidiReactor<shard::v1::ForwardRequest, shard::v1::ForwardReply>* Forward(grpc::CallbackServerContext* context) override;

 private:
  ShardHost& host_;
  const Clock& clock_;
  std::atomic<int> streams_{0};
};

}  // namespace meshnet
