#include "wire/shard_grpc_client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "wire/address.h"
#include "wire/convert.h"
#include "wire/deadline_timer.h"
#include "wire/error_detail.h"
#include "wire/forward_stream.h"
#include "wire/grpc_transport.h"
#include "wire/tls_credentials_file.h"
#include "wire/validate_reply.h"

namespace meshnet {
namespace {

namespace pb = shard::v1;

std::chrono::system_clock::time_point WallDeadline(Time deadline) {
  auto left = std::clamp<Duration>(deadline - std::chrono::steady_clock::now(), Duration::zero(), std::chrono::hours(24));
  return std::chrono::system_clock::now() + std::chrono::duration_cast<std::chrono::system_clock::duration>(left);
}

std::string TargetOf(const Address& address) {
  if (address.kind == Address::Kind::kUnix) return address.Text();
  if (address.host.find(':') == std::string::npos) return "dns:///" + address.Text();
  std::string host = address.host;
  if (size_t percent = host.find('%'); percent != std::string::npos) host.replace(percent, 1, "%25");
  return "ipv6:%5B" + host + "%5D:" + std::to_string(address.port);
}

// What a failed call means in the terms of whoever set the flags.
std::string Explain(const grpc::Status& status, const TlsOptions& tls) {
  const std::string& text = status.error_message();
  auto says = [&](const char* part) { return text.find(part) != std::string::npos; };
  std::string hint;
  if (tls.enabled() && says("wrong version number")) {
    hint = "the peer does not speak TLS; start it with --tls-cert, --tls-key and --tls-ca";
  } else if (tls.enabled() && says("certificate verify failed")) {
    hint = "the peer's certificate was not issued by " + tls.authority_path + " (--tls-ca), or has expired";
  } else if (tls.enabled() && (says("Hostname Verification") || says("Peer name"))) {
    hint = "the peer's certificate was issued for another host name or address";
  } else if (tls.enabled() && (says("Socket closed") || says("Connection reset") || says("alert"))) {
    hint = "the peer closed the connection during the TLS handshake: it does not accept our certificate " + tls.certificate_path +
           " (was it issued by the authority that the peer trusts?)";
  } else if (!tls.enabled() && (says("Socket closed") || says("Connection reset"))) {
    hint = "the peer closed the connection; if it was started with --tls-cert, this side needs --tls-cert, --tls-key and --tls-ca too";
  }
  return hint.empty() ? text : hint + " [" + text + "]";
}

class ShardGrpcClient : public ShardLink, public ForwardStream::Owner {
 public:
  ShardGrpcClient(const Address& address, TlsOptions tls, const std::shared_ptr<grpc::ChannelCredentials>& credentials)
      : address_(address.Text()), tls_(std::move(tls)) {
    grpc::ChannelArguments arguments;
    for (const auto& [name, value] : SharedTransportArguments()) arguments.SetInt(name, value);
    for (const auto& [name, value] : ClientTransportArguments()) arguments.SetInt(name, value);
    channel_ = grpc::CreateCustomChannel(TargetOf(address), credentials, arguments);
    stub_ = pb::Shard::NewStub(channel_);
  }

  ~ShardGrpcClient() override {
    {
      std::unique_lock lock(mutex_);
      closing_ = true;
      for (auto& [number, stream] : streams_) stream->Abort();
      for (auto& [context, call] : calls_) context->TryCancel();
      all_ended_.wait(lock, [this] { return streams_.empty() && calls_.empty(); });
    }
    FailSteps([](const InFlight&) { return true; }, "the link was closed");
    // Contexts, then the channel, go with the members: on this thread and in no callback of gRPC.
  }

  void Describe(Time deadline, Done<ShardDescription> done) override {
    pb::DescribeRequest request;
    request.set_protocol_major(kProtocolMajor);
    request.set_protocol_minor(kProtocolMinor);
    Call<pb::DescribeReply>(std::move(request), deadline, &Async::Describe, ValidateDescription, std::move(done));
  }

  void Open(OpenRequest request, Time deadline, Done<OpenReply> done) override {
    Call<pb::OpenReply>(ToProto(request), deadline, &Async::Open, ValidateOpenReply, std::move(done));
  }

  void Release(SessionKey key, Time deadline, Done<ReleaseOutcome> done) override {
    pb::ReleaseRequest request;
    *request.mutable_ref() = ToProto(key);
    Call<pb::ReleaseReply>(std::move(request), deadline, &Async::Release, ValidateRelease, std::move(done));
  }

  void Stats(Time deadline, Done<ShardStats> done) override {
    Call<pb::StatsReply>(pb::StatsRequest(), deadline, &Async::Stats, ValidateStats, std::move(done));
  }

  void Drain(Time deadline, Done<ShardState> done) override {
    auto validate = [](const pb::DrainReply& reply) { return ValidateState(reply.state()); };
    Call<pb::DrainReply>(pb::DrainRequest(), deadline, &Async::Drain, validate, std::move(done));
  }

  void Forward(const Step& step, Time deadline, Done<StepResult> done) override;
  void Cancel(SessionKey key) override;
  std::string address() const override { return address_; }

 private:
  using Async = pb::Shard::Stub::async_interface;
  template <typename Request, typename WireReply>
  using Method = void (Async::*)(grpc::ClientContext*, const Request*, WireReply*, std::function<void(grpc::Status)>);

  struct InFlight {
    Done<StepResult> done;
    DeadlineTimer::Id timer = 0;
    uint64_t stream = 0;
  };

  template <typename WireReply, typename Request, typename Validate, typename T>
  void Call(Request request, Time deadline, Method<Request, WireReply> method, Validate validate, Done<T> done);
  template <typename T, typename Validated>
  Reply<T> ReplyOf(const grpc::Status& status, const grpc::ClientContext& context, const Validated& validated);

  void OnMessage(pb::ForwardReply& message) override;
  void OnBroken(uint64_t number) override;
  void OnEnded(uint64_t number, const grpc::Status& status) override;

  Reply<StepResult> AnswerOf(const pb::StepAnswer& answer) const;
  std::optional<InFlight> Take(uint64_t request_id);
  template <typename Which>
  void FailSteps(Which which, const std::string& why);

  const std::string address_;
  const TlsOptions tls_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<pb::Shard::Stub> stub_;
  std::atomic<uint64_t> next_request_{1};

  std::mutex mutex_;  // guards all below but the timer
  std::condition_variable all_ended_;
  // A stream or call ends in a callback of gRPC, in which its own context must not be destroyed: it moves to `ended_`, which the next call
  // (it may come from a callback too, of another stage's link) or the destructor empties. Streams are shared with the threads that just send on them.
  std::map<uint64_t, std::shared_ptr<ForwardStream>> streams_;  // by number: the current one and those that are ending
  std::map<grpc::ClientContext*, std::shared_ptr<void>> calls_; // unary calls that run
  std::vector<std::shared_ptr<void>> ended_;
  std::shared_ptr<ForwardStream> current_;
  std::unordered_map<uint64_t, InFlight> in_flight_;  // by request id
  uint64_t next_stream_ = 1;
  bool closing_ = false;

  DeadlineTimer timer_;  // last, so that its thread ends first: it uses everything above
};

template <typename WireReply, typename Request, typename Validate, typename T>
void ShardGrpcClient::Call(Request request, Time deadline, Method<Request, WireReply> method, Validate validate, Done<T> done) {
  struct State {
    grpc::ClientContext context;
    Request request;
    WireReply reply;
    Done<T> done;
  };
  auto state = std::make_shared<State>();
  state->request = std::move(request);
  state->done = std::move(done);
  state->context.set_deadline(WallDeadline(deadline));
  std::vector<std::shared_ptr<void>> ended;  // freed after the lock
  {
    std::unique_lock lock(mutex_);
    if (closing_) {
      lock.unlock();
      state->done(TransportFault{address_ + ": the link is closing"});
      return;
    }
    ended.swap(ended_);
    calls_.emplace(&state->context, state);
  }
  auto on_done = [this, state = state.get(), validate](const grpc::Status& status) {
    state->done(ReplyOf<T>(status, state->context, [&] { return validate(state->reply); }));
    state->done = nullptr;
    std::lock_guard lock(mutex_);
    auto call = calls_.find(&state->context);
    ended_.push_back(std::move(call->second));
    calls_.erase(call);
    all_ended_.notify_all();  // under the lock: the destructor must not free it before we have signalled
  };
  (stub_->async()->*method)(&state->context, &state->request, &state->reply, std::move(on_done));
}

template <typename T, typename Validated>
Reply<T> ShardGrpcClient::ReplyOf(const grpc::Status& status, const grpc::ClientContext& context, const Validated& validated) {
  if (status.ok()) {
    Result<T> reply = validated();
    if (reply.ok()) return std::move(reply).value();
    return TransportFault{address_ + ": " + reply.status().message()};
  }
  auto trailer = context.GetServerTrailingMetadata().find(kErrorTrailer);
  if (trailer != context.GetServerTrailingMetadata().end()) {
    pb::ErrorDetail detail;
    if (detail.ParseFromArray(trailer->second.data(), static_cast<int>(trailer->second.size()))) {
      if (std::optional<Refusal> refusal = FromProto(detail)) return std::move(*refusal);
    }
  }
  return TransportFault{address_ + ": " + Explain(status, tls_)};
}

void ShardGrpcClient::Forward(const Step& step, Time deadline, Done<StepResult> done) {
  const uint64_t request_id = next_request_++;
  // The payload is copied before the lock. Steps of one session keep their order because its caller sends one after the other.
  pb::Step wire = ToProto(step, request_id, std::chrono::steady_clock::now());
  std::vector<std::shared_ptr<void>> ended;  // freed after the lock
  std::shared_ptr<ForwardStream> stream;
  bool fresh = false;
  {
    std::unique_lock lock(mutex_);
    ended.swap(ended_);
    if (closing_) {
      lock.unlock();
      done(TransportFault{address_ + ": the link is closing"});
      return;
    }
    if (in_flight_.size() >= kStepsInFlightMax) {
      Refusal refusal;
      refusal.reason = Reason::kCreditExceeded;
      refusal.message = address_ + ": more than " + std::to_string(kStepsInFlightMax) + " steps in flight on one link";
      refusal.retry_after = std::chrono::milliseconds(10);
      timer_.Add(Time::min(), [done = std::move(done), refusal] { done(refusal); });
      return;
    }
    if (!current_) {
      current_ = std::make_shared<ForwardStream>(*this, next_stream_++, *stub_);
      streams_.emplace(current_->number(), current_);
      fresh = true;
    }
    stream = current_;
    InFlight& entry = in_flight_[request_id];
    entry.done = std::move(done);
    entry.stream = stream->number();
    entry.timer = timer_.Add(deadline, [this, request_id] {
      if (std::optional<InFlight> late = Take(request_id)) late->done(TransportFault{address_ + ": no answer within the step's deadline"});
    });
    stream->Queue(std::move(wire));
  }
  if (fresh) stream->Start();
  stream->Pump();
}

void ShardGrpcClient::Cancel(SessionKey key) {
  pb::CancelSteps cancel;
  *cancel.mutable_ref() = ToProto(key);
  std::shared_ptr<ForwardStream> stream;
  {
    std::lock_guard lock(mutex_);
    stream = current_;  // none: whatever was queued over it is being cancelled with it
  }
  if (!stream) return;
  stream->QueueCancel(std::move(cancel));
  stream->Pump();
}

std::optional<ShardGrpcClient::InFlight> ShardGrpcClient::Take(uint64_t request_id) {
  std::lock_guard lock(mutex_);
  auto node = in_flight_.extract(request_id);
  if (node.empty()) return std::nullopt;
  timer_.Remove(node.mapped().timer);
  return std::move(node.mapped());
}

Reply<StepResult> ShardGrpcClient::AnswerOf(const pb::StepAnswer& answer) const {
  if (answer.has_error()) {
    if (std::optional<Refusal> refusal = FromProto(answer.error())) return std::move(*refusal);
    return TransportFault{address_ + ": malformed answer: unknown reason " + std::to_string(answer.error().reason())};
  }
  if (!answer.has_result()) return TransportFault{address_ + ": malformed answer: neither result nor error"};
  Result<StepResult> result = ValidateStepResult(answer.result());
  if (!result.ok()) return TransportFault{address_ + ": " + result.status().message()};
  return std::move(result).value();
}

void ShardGrpcClient::OnMessage(pb::ForwardReply& message) {
  for (const pb::StepAnswer& answer : message.answers()) {
    // An id that is not in flight is a late answer, after its deadline, or nonsense: both are dropped.
    std::optional<InFlight> entry = Take(answer.request_id());
    if (entry) entry->done(AnswerOf(answer));
  }
}

void ShardGrpcClient::OnBroken(uint64_t number) {
  {
    std::lock_guard lock(mutex_);
    if (current_ && current_->number() == number) current_.reset();
    if (closing_) return;
  }
  channel_->GetState(/*try_to_connect=*/true);
}

void ShardGrpcClient::OnEnded(uint64_t number, const grpc::Status& status) {
  FailSteps([number](const InFlight& entry) { return entry.stream == number; },
            status.ok() ? "the peer ended the stream" : "the stream broke: " + Explain(status, tls_));
  std::lock_guard lock(mutex_);
  auto stream = streams_.find(number);
  ended_.push_back(std::move(stream->second));
  streams_.erase(stream);
  all_ended_.notify_all();  // under the lock: the destructor must not free it before we have signalled
}

template <typename Which>
void ShardGrpcClient::FailSteps(Which which, const std::string& why) {
  std::map<uint64_t, InFlight> failed;  // in the order they were sent
  {
    std::lock_guard lock(mutex_);
    for (auto entry = in_flight_.begin(); entry != in_flight_.end();) {
      if (!which(entry->second)) {
        ++entry;
        continue;
      }
      timer_.Remove(entry->second.timer);
      failed.emplace(entry->first, std::move(entry->second));
      entry = in_flight_.erase(entry);
    }
  }
  for (auto& [request_id, entry] : failed) entry.done(TransportFault{address_ + ": " + why});
}

}  // namespace

Result<std::unique_ptr<ShardLink>> ConnectShard(const std::string& text, const TlsOptions& tls) {
  QuietGrpcLog();
  Result<Address> address = ParseAddress(text, kWorkerPort);
  if (!address.ok()) return address.status();
  if (address->kind == Address::Kind::kTcp && address->port == 0) {
    return Status(StatusCode::kUsage, "address \"" + text + "\": port 0 can be listened on, not connected to");
  }
  if (Status status = CheckTlsFiles(tls); !status.ok()) return status;
  const bool local_socket = address->kind == Address::Kind::kUnix;
  if (!tls.enabled() && !tls.insecure && !address->is_loopback()) {
    return Refused("plaintext to " + address->Text() + " is refused: give --tls-cert, --tls-key and --tls-ca, or --insecure on a network you trust");
  }
  // A socket in the file system is guarded by its permissions, and no certificate could name it.
  Result<std::shared_ptr<grpc::ChannelCredentials>> credentials = ChannelCredentialsOf(local_socket ? TlsOptions() : tls);
  if (!credentials.ok()) return credentials.status();
  return std::unique_ptr<ShardLink>(std::make_unique<ShardGrpcClient>(*address, tls, *credentials));
}

}  // namespace meshnet
