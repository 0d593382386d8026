#include "wire/forward_stream.h"

#include <utility>

#include "wire/wire_limits.h"

namespace meshnet {

ForwardStream::ForwardStream(Owner& owner, uint64_t number, shard::v1::Shard::Stub& stub) : owner_(owner), number_(number) {
  stub.async()->Forward(&context_, this);
  // Writes start outside of reactions; the hold keeps the call alive for them until the stream breaks.
  AddHold();
}

void ForwardStream::Start() {
  StartRead(&incoming_);
  StartCall();
}

ForwardStream::Pending& ForwardStream::TailFor(uint64_t bytes) {
  if (pending_.empty() || pending_.back().bytes + bytes > kCoalescedBytesMax || pending_.back().message.cancels_size() > 0 ||
      pending_.back().message.steps_size() >= static_cast<int>(kStepsPerMessageMax)) {
    pending_.emplace_back();
  }
  return pending_.back();
}

void ForwardStream::Queue(shard::v1::Step step) {
  const uint64_t bytes = step.ByteSizeLong();
  std::lock_guard lock(mutex_);
  if (broken_) return;
  // A message's cancels act after its steps, so a step that comes behind a cancel opens a new message (TailFor).
  Pending& tail = TailFor(bytes);
  *tail.message.add_steps() = std::move(step);
  tail.bytes += bytes;
}

void ForwardStream::QueueCancel(shard::v1::CancelSteps cancel) {
  std::lock_guard lock(mutex_);
  if (broken_) return;
  if (pending_.empty() || pending_.back().message.cancels_size() >= static_cast<int>(kStepsPerMessageMax)) pending_.emplace_back();
  *pending_.back().message.add_cancels() = std::move(cancel);
}

void ForwardStream::Pump() {
  {
    std::lock_guard lock(mutex_);
    if (writing_ || broken_ || pending_.empty()) return;
    writing_ = true;
    ++starting_writes_;
    outgoing_ = std::move(pending_.front().message);
    pending_.pop_front();
  }
  StartWrite(&outgoing_);
  bool release = false;
  {
    std::lock_guard lock(mutex_);
    --starting_writes_;
    release = broken_ && starting_writes_ == 0 && !std::exchange(hold_released_, true);
  }
  if (release) RemoveHold();
}

void ForwardStream::OnWriteDone(bool ok) {
  {
    std::lock_guard lock(mutex_);
    writing_ = false;
    if (!ok) return;  // the read reaction breaks the stream
  }
  Pump();
}

void ForwardStream::OnReadDone(bool ok) {
  if (ok) {
    owner_.OnMessage(incoming_);
    incoming_.Clear();
    StartRead(&incoming_);
    return;
  }
  bool release = false;
  {
    std::lock_guard lock(mutex_);
    broken_ = true;
    pending_.clear();
    if (starting_writes_ == 0) release = !std::exchange(hold_released_, true);
  }
  owner_.OnBroken(number_);
  if (release) RemoveHold();
}

void ForwardStream::OnDone(const grpc::Status& status) { owner_.OnEnded(number_, status); }

}  // namespace meshnet
