// A client of the shard protocol that can send anything: the generated stub and nothing of our own client.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "meshnet/shard/v1/health.grpc.pb.h"
#include "meshnet/shard/v1/shard.grpc.pb.h"

namespace meshnet::conformance {

namespace pb = shard::v1;

// A unary call's end: OK with a reply, or a status with our detail.
template <typename T>
struct Outcome {
  grpc::Status status;
  T reply;
  std::optional<pb::ErrorDetail> error;
  bool ok() const { return status.ok(); }
  // "CACHE_MISS/NO_SESSION", "OK".
  std::string Text() const;
};
std::string TextOf(const pb::ErrorDetail& error);
std::string TextOf(const pb::StepAnswer& answer);

class Client {
 public:
  explicit Client(const std::string& address);

  Outcome<pb::DescribeReply> Describe(uint32_t major = 1, uint32_t minor = 0);
  Outcome<pb::OpenReply> Open(const pb::OpenRequest& request);
  Outcome<pb::ReleaseReply> Release(const pb::SessionRef& ref);
  Outcome<pb::StatsReply> Stats();
  Outcome<pb::DrainReply> Drain();
  grpc::Status Check(const std::string& service, grpc::health::v1::HealthCheckResponse& response);

  pb::Shard::Stub& shard() { return *shard_; }
  grpc::health::v1::Health::Stub& health() { return *health_; }

 private:
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<pb::Shard::Stub> shard_;
  std::unique_ptr<grpc::health::v1::Health::Stub> health_;
};

// One Forward stream. Each step is answered by its request id.
class Stream {
 public:
  explicit Stream(Client& client);
  ~Stream();  // breaks it off

  // Fills in the request id.
  uint64_t Send(pb::Step step);
  // As it is.
  bool SendMessage(const pb::ForwardRequest& message) { return stream_->Write(message); }
  uint64_t NextId() { return next_id_++; }
  // Blocks; nothing when the stream has ended.
  std::optional<pb::StepAnswer> Answer(uint64_t request_id);
  std::optional<pb::StepAnswer> Ask(pb::Step step) { return Answer(Send(std::move(step))); }
  // Half-closes, reads to the end.
  grpc::Status Finish();
  grpc::Status End();  // of a stream that the worker ends
  // How many messages came so far, and answers in them.
  size_t messages() const { return messages_; }

 private:
  bool ReadOne();

  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<pb::ForwardRequest, pb::ForwardReply>> stream_;
  std::map<uint64_t, pb::StepAnswer> answers_;
  uint64_t next_id_ = 1;
  size_t messages_ = 0;
  bool ended_ = false;
};

// What a correct caller knows of one session. Steps it makes are right; tests spoil them.
class Session {
 public:
  Session(Client& client, const pb::DescribeReply& shard, uint64_t epoch = 1);
  // Another epoch of the same session, or another process that believes to own the same one.
  Session Rival(uint64_t epoch) const;

  pb::OpenRequest OpenRequest(uint32_t reserve = 64) const;
  Outcome<pb::OpenReply> Open(uint32_t reserve = 64);
  pb::Step Prefill(std::vector<Token> tokens) const;
  pb::Step Decode(Token token) const;
  // The step committed.
  void Commit(const pb::Step& step);
  void Acknowledge() { acked_ = next_ - 1; }
  // A right step, sent and committed; the answer's text when it is not.
  std::string MustForward(Stream& stream, const pb::Step& step);

  pb::SessionRef ref() const;
  uint64_t next() const { return next_; }
  const std::string& incarnation() const { return incarnation_; }
  std::vector<Token>& log() { return log_; }
  std::string cache_salt;

 private:
  Client& client_;
  const pb::DescribeReply shard_;
  std::string id_;
  uint64_t epoch_;
  std::string incarnation_;
  uint64_t next_ = 1;
  uint64_t acked_ = 0;
  std::vector<Token> log_;
};

// llama.cpp's greedy sampling, every other field at its default.
pb::SamplingParams GreedySampling();

template <typename T>
std::string Outcome<T>::Text() const {
  if (status.ok()) return "OK";
  return error ? TextOf(*error) : "status " + std::to_string(status.error_code()) + " without detail: " + status.error_message();
}

}  // namespace meshnet::conformance
