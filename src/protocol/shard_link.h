// The seam between whoever drives a session and the shard that holds it: over gRPC (wire/shard_grpc_client.h) or in one process (tests).
#pragma once

#include <functional>
#include <string>

#include "protocol/describe.h"
#include "protocol/session_open.h"
#include "protocol/step.h"

namespace meshnet {

// All calls are thread-safe and return at once. Each `done` is called exactly once, on a thread of the link, with no lock held; it must not
// block and must not destroy the link. A call past `deadline` ends as a TransportFault: its outcome is unknown.
class ShardLink {
 public:
  virtual ~ShardLink() = default;

  template <typename T>
  using Done = std::function<void(Reply<T>)>;

  virtual void Describe(Time deadline, Done<ShardDescription> done) = 0;
  virtual void Open(OpenRequest request, Time deadline, Done<OpenReply> done) = 0;
  // Steps of one session are delivered in the order of the calls. `step` is borrowed for the call.
  virtual void Forward(const Step& step, Time deadline, Done<StepResult> done) = 0;
  // Takes the session's queued steps out without effect; a running one stops or commits. Their `done` still come.
  virtual void Cancel(SessionKey key) = 0;
  virtual void Release(SessionKey key, Time deadline, Done<ReleaseOutcome> done) = 0;
  virtual void Stats(Time deadline, Done<ShardStats> done) = 0;
  virtual void Drain(Time deadline, Done<ShardState> done) = 0;

  // Where it leads, for messages: "127.0.0.1:7070".
  virtual std::string address() const = 0;
};

}  // namespace meshnet
