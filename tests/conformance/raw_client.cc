#include "raw_client.h"

#include <utility>

#include "base/system_clock.h"
#include "protocol/prefix_digest.h"
#include "wire/convert.h"

namespace meshnet::conformance {
namespace {

constexpr int kTimeoutSeconds = 30;

void SetDeadline(grpc::ClientContext& context) { context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(kTimeoutSeconds)); }

template <typename T>
Outcome<T> OutcomeOf(const grpc::ClientContext& context, grpc::Status status, T reply) {
  Outcome<T> outcome{std::move(status), std::move(reply), std::nullopt};
  const auto& trailers = context.GetServerTrailingMetadata();
  if (auto trailer = trailers.find("meshnet-error-bin"); trailer != trailers.end()) {
    pb::ErrorDetail detail;
    if (detail.ParseFromArray(trailer->second.data(), static_cast<int>(trailer->second.size()))) outcome.error = detail;
  }
  return outcome;
}

}  // namespace

std::string TextOf(const pb::ErrorDetail& error) {
  std::string text = pb::Reason_Name(error.reason());
  if (error.detail() != pb::DETAIL_NONE) text += "/" + pb::Detail_Name(error.detail());
  return text;
}

std::string TextOf(const pb::StepAnswer& answer) {
  if (answer.has_error()) return TextOf(answer.error());
  return answer.result().replayed() ? "REPLAYED" : "OK";
}

Client::Client(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  channel_ = grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  shard_ = pb::Shard::NewStub(channel_);
  health_ = grpc::health::v1::Health::NewStub(channel_);
}

Outcome<pb::DescribeReply> Client::Describe(uint32_t major, uint32_t minor) {
  grpc::ClientContext context;
  SetDeadline(context);
  pb::DescribeRequest request;
  request.set_protocol_major(major);
  request.set_protocol_minor(minor);
  pb::DescribeReply reply;
  grpc::Status status = shard_->Describe(&context, request, &reply);
  return OutcomeOf(context, status, reply);
}

Outcome<pb::OpenReply> Client::Open(const pb::OpenRequest& request) {
  grpc::ClientContext context;
  SetDeadline(context);
  pb::OpenReply reply;
  grpc::Status status = shard_->Open(&context, request, &reply);
  return OutcomeOf(context, status, reply);
}

Outcome<pb::ReleaseReply> Client::Release(const pb::SessionRef& ref) {
  grpc::ClientContext context;
  SetDeadline(context);
  pb::ReleaseRequest request;
  *request.mutable_ref() = ref;
  pb::ReleaseReply reply;
  grpc::Status status = shard_->Release(&context, request, &reply);
  return OutcomeOf(context, status, reply);
}

Outcome<pb::StatsReply> Client::Stats() {
  grpc::ClientContext context;
  SetDeadline(context);
  pb::StatsReply reply;
  grpc::Status status = shard_->Stats(&context, pb::StatsRequest(), &reply);
  return OutcomeOf(context, status, reply);
}

Outcome<pb::DrainReply> Client::Drain() {
  grpc::ClientContext context;
  SetDeadline(context);
  pb::DrainReply reply;
  grpc::Status status = shard_->Drain(&context, pb::DrainRequest(), &reply);
  return OutcomeOf(context, status, reply);
}

grpc::Status Client::Check(const std::string& service, grpc::health::v1::HealthCheckResponse& response) {
  grpc::ClientContext context;
  SetDeadline(context);
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(service);
  return health_->Check(&context, request, &response);
}

Stream::Stream(Client& client) {
  SetDeadline(context_);
  stream_ = client.shard().Forward(&context_);
}

Stream::~Stream() {
  if (ended_) return;
  context_.TryCancel();
  End();
}

uint64_t Stream::Send(pb::Step step) {
  const uint64_t id = next_id_++;
  step.set_request_id(id);
  pb::ForwardRequest message;
  *message.add_steps() = std::move(step);
  stream_->Write(message);
  return id;
}

bool Stream::ReadOne() {
  pb::ForwardReply reply;
  if (!stream_->Read(&reply)) return false;
  ++messages_;
  for (pb::StepAnswer& answer : *reply.mutable_answers()) answers_[answer.request_id()] = std::move(answer);
  return true;
}

std::optional<pb::StepAnswer> Stream::Answer(uint64_t request_id) {
  while (!answers_.contains(request_id)) {
    if (!ReadOne()) return std::nullopt;
  }
  pb::StepAnswer answer = std::move(answers_[request_id]);
  answers_.erase(request_id);
  return answer;
}

grpc::Status Stream::Finish() {
  stream_->WritesDone();
  return End();
}

grpc::Status Stream::End() {
  while (ReadOne()) {
  }
  ended_ = true;
  return stream_->Finish();
}

Session::Session(Client& client, const pb::DescribeReply& shard, uint64_t epoch)
    : client_(client), shard_(shard), id_(RandomId<SessionId>().Raw()), epoch_(epoch), incarnation_(shard.incarnation()) {}

Session Session::Rival(uint64_t epoch) const {
  Session rival(client_, shard_, epoch);
  rival.id_ = id_;
  return rival;
}

pb::SessionRef Session::ref() const {
  pb::SessionRef ref;
  ref.set_route_session_id(id_);
  ref.set_route_epoch(epoch_);
  return ref;
}

pb::OpenRequest Session::OpenRequest(uint32_t reserve) const {
  pb::OpenRequest request;
  *request.mutable_ref() = ref();
  request.set_model_root(shard_.model_root());
  *request.mutable_range() = shard_.range();
  request.set_reserve_tokens(reserve);
  request.set_cache_salt(cache_salt);
  request.set_protocol_major(1);
  return request;
}

Outcome<pb::OpenReply> Session::Open(uint32_t reserve) {
  Outcome<pb::OpenReply> outcome = client_.Open(OpenRequest(reserve));
  if (outcome.ok()) {
    incarnation_ = outcome.reply.incarnation();
    next_ = outcome.reply.next_step();
    acked_ = next_ - 1;
    log_.resize(outcome.reply.past_len());
  }
  return outcome;
}

pb::Step Session::Prefill(std::vector<Token> tokens) const {
  pb::Step step;
  *step.mutable_ref() = ref();
  step.set_incarnation(incarnation_);
  step.set_step_seq(next_);
  step.set_kind(pb::STEP_KIND_PREFILL);
  step.set_start_pos(static_cast<uint32_t>(log_.size()));
  step.set_prefix_digest(DigestOfPrefix(cache_salt, log_).Raw());
  for (Token token : tokens) step.add_tokens(token);
  if (shard_.range().begin() > 0) {
    std::vector<float> values(tokens.size() * shard_.boundary_width(), 0.25f);
    pb::Frame& frame = *step.mutable_input();
    frame.set_layout_version(1);
    frame.set_encoding(pb::ENCODING_F32);
    frame.set_rows(static_cast<uint32_t>(tokens.size()));
    frame.set_width(shard_.boundary_width());
    frame.set_payload(values.data(), values.size() * sizeof(float));
  }
  step.set_rows(pb::ROWS_WANTED_LAST);
  step.set_ack_seq(acked_);
  return step;
}

pb::Step Session::Decode(Token token) const {
  pb::Step step = Prefill({token});
  step.set_kind(pb::STEP_KIND_DECODE);
  return step;
}

void Session::Commit(const pb::Step& step) {
  log_.resize(step.start_pos());
  log_.insert(log_.end(), step.tokens().begin(), step.tokens().end());
  next_ = step.step_seq() + 1;
}

std::string Session::MustForward(Stream& stream, const pb::Step& step) {
  std::optional<pb::StepAnswer> answer = stream.Ask(step);
  if (!answer) return "the stream ended";
  if (!answer->has_result()) return TextOf(*answer) + ": " + answer->error().message();
  Commit(step);
  Acknowledge();
  return TextOf(*answer);
}

pb::SamplingParams GreedySampling() {
  SamplingParams params;
  params.temperature = 0;
  return ToProto(params);
}

}  // namespace meshnet::conformance
