#include "worker/shard_service.h"

#include <utility>

#include "wire/convert.h"
#include "wire/error_detail.h"
#include "wire/validate.h"
#include "worker/step_stream.h"

namespace meshnet {
namespace {

namespace pb = shard::v1;

grpc::Status StatusOf(grpc::CallbackServerContext& context, const Refusal& refusal) {
  const pb::ErrorDetail detail = ToProto(refusal);
  context.AddTrailingMetadata(kErrorTrailer, detail.SerializeAsString());
  return grpc::Status(static_cast<grpc::StatusCode>(detail.grpc_code()), detail.message(), StatusDetails(refusal));
}

grpc::ServerUnaryReactor* Refuse(grpc::CallbackServerContext* context, const Refusal& refusal) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(StatusOf(*context, refusal));
  return reactor;
}

// Finishes a call with what `fill` makes of the value, or with the refusal. `reactor` is the call's default one, which a second
// DefaultReactor() would build anew, losing what was finished already.
template <typename T, typename Fill>
ShardLink::Done<T> Finisher(grpc::CallbackServerContext* context, grpc::ServerUnaryReactor* reactor, Fill fill) {
  return [context, reactor, fill](Reply<T> reply) {
    if (T* value = std::get_if<T>(&reply)) {
      fill(*value);
      reactor->Finish(grpc::Status::OK);
    } else if (Refusal* refusal = std::get_if<Refusal>(&reply)) {
      reactor->Finish(StatusOf(*context, *refusal));
    } else {
      reactor->Finish(grpc::Status(grpc::StatusCode::UNAVAILABLE, std::get<TransportFault>(reply).message));
    }
  };
}

}  // namespace

grpc::ServerUnaryReactor* ShardService::Describe(grpc::CallbackServerContext* context, const pb::DescribeRequest* request, pb::DescribeReply* reply) {
  // Another minor may still ask: it is the answer that shows both sides what differs.
  if (std::optional<Refusal> refusal = ValidateVersion(request->protocol_major(), 0)) return Refuse(context, host_.Named(std::move(*refusal)));
  *reply = ToProto(host_.description());
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* ShardService::Open(grpc::CallbackServerContext* context, const pb::OpenRequest* request, pb::OpenReply* reply) {
  std::variant<OpenRequest, Refusal> read = ValidateOpen(*request);
  if (Refusal* refusal = std::get_if<Refusal>(&read)) return Refuse(context, host_.Named(std::move(*refusal)));
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  host_.Open(std::move(std::get<OpenRequest>(read)), Finisher<OpenReply>(context, reactor, [reply](const OpenReply& value) { *reply = ToProto(value); }));
  return reactor;
}

grpc::ServerUnaryReactor* ShardService::Release(grpc::CallbackServerContext* context, const pb::ReleaseRequest* request, pb::ReleaseReply* reply) {
  std::variant<SessionKey, Refusal> key = ValidateSessionRef(request->ref());
  if (Refusal* refusal = std::get_if<Refusal>(&key)) return Refuse(context, host_.Named(std::move(*refusal)));
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  host_.Release(std::get<SessionKey>(key),
                Finisher<ReleaseOutcome>(context, reactor, [reply](ReleaseOutcome value) { reply->set_outcome(ToProto(value)); }));
  return reactor;
}

grpc::ServerUnaryReactor* ShardService::Drain(grpc::CallbackServerContext* context, const pb::DrainRequest*, pb::DrainReply* reply) {
  host_.BeginDrain(/*then_end=*/false);
  reply->set_state(ToProto(host_.description().state));
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* ShardService::Stats(grpc::CallbackServerContext* context, const pb::StatsRequest*, pb::StatsReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  host_.Stats(Finisher<ShardStats>(context, reactor, [reply](const ShardStats& value) { *reply = ToProto(value); }));
  return reactor;
}

grpc::ServerBidiReactor<pb::ForwardRequest, pb::ForwardReply>* ShardService::Forward(grpc::CallbackServerContext* context) {
  return StepStream::Start(host_, clock_, streams_, *context);
}

}  // namespace meshnet
