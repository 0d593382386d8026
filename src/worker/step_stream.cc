#include "worker/step_stream.h"

#include <utility>

#include "wire/convert.h"
#include "wire/error_detail.h"
#include "wire/wire_limits.h"
#include "worker/shard_service.h"

namespace meshnet {
namespace {

namespace pb = shard::v1;

pb::StepAnswer ToProto(StepAnswer answer) {
  pb::StepAnswer wire;
  wire.set_request_id(answer.request_id);
  if (Refusal* refusal = std::get_if<Refusal>(&answer.outcome)) {
    *wire.mutable_error() = meshnet::ToProto(*refusal);
  } else {
    const RecordedResult& recorded = std::get<RecordedResult>(answer.outcome);
    *wire.mutable_result() = meshnet::ToProto(*recorded.result, recorded.replayed);
  }
  return wire;
}

Refusal TooMany() {
  Refusal refusal;
  refusal.reason = Reason::kBadRequest;
  refusal.detail = Detail::kLimit;
  refusal.message = "a message holds at most " + std::to_string(kStepsPerMessageMax) + " steps and as many cancels";
  return refusal;
}

}  // namespace

StepStream* StepStream::Start(ShardHost& host, const Clock& clock, std::atomic<int>& streams, grpc::CallbackServerContext& context) {
  std::shared_ptr<StepStream> stream(new StepStream(host, clock, streams, context));
  stream->self_ = stream;
  if (streams.fetch_add(1) >= kForwardStreamsMax) {
    stream->finished_ = true;
    stream->Finish(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "this worker has " + std::to_string(kForwardStreamsMax) + " streams open already"));
  } else {
    stream->StartRead(&stream->incoming_);
  }
  return stream.get();
}

void StepStream::OnReadDone(bool ok) {
  if (ok) return Receive();
  // The other side has sent all it wants, or is gone; in the latter case OnCancel comes too.
  {
    std::lock_guard lock(mutex_);
    no_more_reads_ = true;
  }
  Pump();
}

void StepStream::Receive() {
  const std::optional<Refusal> not_serving = host_.not_serving();
  const ShardShape shape = host_.shape();
  const Time now = clock_.Now();
  const uint64_t bytes = incoming_.ByteSizeLong();
  std::vector<SubmittedStep> steps;
  std::vector<SessionKey> cancels;
  std::vector<StepAnswer> refused;
  auto refuse = [&refused](uint64_t request_id, Refusal refusal) {
    StepAnswer& answer = refused.emplace_back();
    answer.request_id = request_id;
    answer.outcome = std::move(refusal);
  };
  const bool too_many = static_cast<size_t>(incoming_.steps_size()) > kStepsPerMessageMax || static_cast<size_t>(incoming_.cancels_size()) > kStepsPerMessageMax;
  for (const pb::Step& wire : incoming_.steps()) {
    if (not_serving) {
      refuse(wire.request_id(), *not_serving);
      continue;
    }
    std::variant<IncomingStep, Refusal> read = too_many ? std::variant<IncomingStep, Refusal>(TooMany()) : ValidateStep(wire, shape, now);
    if (Refusal* refusal = std::get_if<Refusal>(&read)) {
      refuse(wire.request_id(), host_.Named(std::move(*refusal)));
    } else {
      steps.push_back({wire.request_id(), std::move(std::get<IncomingStep>(read))});
    }
  }
  for (const pb::CancelSteps& wire : incoming_.cancels()) {
    std::variant<SessionKey, Refusal> key = ValidateSessionRef(wire.ref());
    // A cancel has no answer, so a malformed one can only be ignored.
    if (!too_many && std::holds_alternative<SessionKey>(key)) cancels.push_back(std::get<SessionKey>(key));
  }
  incoming_.Clear();
  {
    std::lock_guard lock(mutex_);
    unanswered_ += steps.size();
  }
  if (!refused.empty()) Queue(std::move(refused));
  if (!steps.empty() || !cancels.empty()) host_.Submit(std::move(steps), std::move(cancels), shared_from_this(), bytes);
  host_.WhenRoom([self = shared_from_this()] { self->ReadOn(); });
}

void StepStream::ReadOn() {
  {
    std::lock_guard lock(mutex_);
    if (finished_ || cancelled_) return;
    ++starting_;
  }
  StartRead(&incoming_);
  {
    std::lock_guard lock(mutex_);
    --starting_;
  }
  Pump();
}

void StepStream::OnAnswers(std::vector<StepAnswer> answers) {
  {
    std::lock_guard lock(mutex_);
    unanswered_ -= std::min(unanswered_, answers.size());
  }
  Queue(std::move(answers));
}

// Whether one more answer may be queued. A stream whose reader has not taken what it has is cut off.
bool StepStream::HasRoom() {
  {
    std::lock_guard lock(mutex_);
    if (finished_ || cancelled_) return false;
    if (pending_bytes_ <= kUnreadAnswerBytesMax) return true;
  }
  context_.TryCancel();
  return false;
}

// One after the other: a message may ask a thousand times for one large record.
void StepStream::Queue(std::vector<StepAnswer> answers) {
  for (StepAnswer& answer : answers) {
    if (!HasRoom()) return;
    pb::StepAnswer wire = ToProto(std::move(answer));
    const uint64_t bytes = wire.ByteSizeLong();
    std::lock_guard lock(mutex_);
    if (finished_ || cancelled_) return;
    if (pending_.empty() || pending_.back().bytes + bytes > kCoalescedBytesMax) pending_.emplace_back();
    *pending_.back().message.add_answers() = std::move(wire);
    pending_.back().bytes += bytes;
    pending_bytes_ += bytes;
  }
  Pump();
}

StepStream::Next StepStream::Decide() {
  if (finished_ || writing_ || starting_ > 0) return Next::kNothing;
  if (cancelled_) {
    finished_ = true;
    return Next::kFinish;
  }
  if (!pending_.empty()) {
    outgoing_ = std::move(pending_.front().message);
    pending_bytes_ -= pending_.front().bytes;
    pending_.pop_front();
    writing_ = true;
    ++starting_;
    return Next::kWrite;
  }
  if (no_more_reads_ && unanswered_ == 0) {
    finished_ = true;
    return Next::kFinish;
  }
  return Next::kNothing;
}

void StepStream::Pump() {
  Next next;
  {
    std::lock_guard lock(mutex_);
    next = Decide();
  }
  while (next != Next::kNothing) {
    if (next == Next::kFinish) {
      Finish(cancelled_ ? grpc::Status::CANCELLED : grpc::Status::OK);
      return;  // gRPC may be done with it already
    }
    StartWrite(&outgoing_);
    std::lock_guard lock(mutex_);
    --starting_;
    next = Decide();
  }
}

void StepStream::OnWriteDone(bool ok) {
  {
    std::lock_guard lock(mutex_);
    writing_ = false;
    if (!ok) cancelled_ = true;
  }
  Pump();
}

void StepStream::OnCancel() {
  {
    std::lock_guard lock(mutex_);
    cancelled_ = true;
    pending_.clear();
    pending_bytes_ = 0;
  }
  Pump();
}

void StepStream::OnDone() {
  // Whatever ended it: nobody reads its answers any more.
  host_.EndStream(shared_from_this());
  streams_.fetch_sub(1);
  self_.reset();
}

}  // namespace meshnet
