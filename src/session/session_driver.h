// Drives one session through a route: opens it on every stage, prefills in chunks, decodes, and answers each refusal (shard protocol,
// section 5) from its journal of token ids. A worker that dies is a pause: epoch + 1, re-prefill of the journal, no token twice or missing.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/status.h"
#include "protocol/sampling_params.h"
#include "session/route.h"

namespace meshnet {

enum class AnswerEnd {
  kEndOfGeneration,  // the model ended
  kLength,           // max_tokens or the context limit
  kStopped,          // the sink said stop
  kCancelled,        // `cancelled` said so
};

struct AnswerRequest {
  std::vector<Token> prompt;       // the whole prompt; what the session already holds of it is reused
  SamplingParams sampling;         // prompt_len is set by the driver
  uint32_t tokens_max = 0;         // 0: until the context is full
};

struct AnswerReport {
  AnswerEnd end = AnswerEnd::kEndOfGeneration;
  uint32_t prompt_tokens = 0;
  uint32_t cached_tokens = 0;      // of the prompt, held already and not computed again
  uint32_t generated_tokens = 0;
  uint32_t replays = 0;            // re-prefills that a lost or evicted stage forced
};

// Why an answer ended early. What the sink got before stands.
struct AnswerFailure {
  enum class Kind { kContextExceeded, kCapacity, kBadRequest, kRouteDown, kInternal };
  Kind kind = Kind::kInternal;
  std::string message;             // stage, range, epoch, cause
  std::optional<Duration> retry_after;
  AnswerReport report = {};        // what was done until then; its `end` means nothing
};

enum class SinkVerdict { kGoOn, kStop };

// How often a wait asks whether it is cancelled or in a hurry; whoever wants to be seen sooner wakes it.
inline constexpr Duration kPollInterval = std::chrono::milliseconds(250);

class AnswerSink {
 public:
  virtual ~AnswerSink() = default;
  // Called in order on the driver's thread, each token once, recovered ones not again. The end-of-generation token is delivered too.
  virtual SinkVerdict OnToken(const SampledToken& token) = 0;
  // Prompt tokens computed so far, for progress; may be called never.
  virtual void OnPrefill(uint32_t done_tokens, uint32_t total_tokens) { (void)done_tokens, (void)total_tokens; }
  // Asked between steps, while waiting after each DrivenSession::Wake and at least every 250 ms; true ends the answer and frees its work on
  // every stage. Asking more often is not free: 64 waiting sessions that wake 20 times a second disturb an engine's cores.
  virtual bool Cancelled() { return false; }
};

struct DriverOptions {
  uint32_t pipelined_chunks = 0;   // chunks of one prefill in flight at once; 0: one a stage, at least 2
  uint32_t chunk_rows = 0;         // tokens of one chunk; 0: the smallest that the stages publish
  Duration step_timeout = std::chrono::seconds(120);
  Duration recovery_limit = std::chrono::seconds(60);  // an answer waits this long for its route, then fails
  // Names a new session: its id, and the last epoch that was opened under it, 0 for a fresh one. Empty: 16 random bytes. For who takes a
  // session over from another driver, and for names by a seed.
  std::function<SessionKey()> name = nullptr;
};

// A latency observer for metrics: stage index and seconds of one hop (call to answer). Called on the driver's thread or a link's, one at a time.
using HopObserver = std::function<void(size_t stage, double seconds)>;

// One session. Not thread-safe: one thread at a time. Its stages hold the KV until Release or their TTL; an idle session may answer again and
// reuses the longest common prefix its truncation class allows.
class DrivenSession {
 public:
  // `route`, `clock` outlive the session. Nothing is sent before the first call. `cache_salt` separates owners in every digest.
  DrivenSession(Route& route, const Clock& clock, DriverOptions options, std::string cache_salt, HopObserver observer = {});
  ~DrivenSession();  // does not release: call Release when the session ends

  // Blocks until the answer ends. A failure leaves the session usable for another Answer unless the route is down.
  std::variant<AnswerReport, AnswerFailure> Answer(const AnswerRequest& request, AnswerSink& sink);

  // One raw chunk appended at the end: returns the tail's logits of every row, `[n][vocabulary]`. For `verify`; throws away nothing.
  std::variant<HiddenState, AnswerFailure> ForwardLogits(std::span<const Token> tokens);

  // Frees the session on every stage, as far as they answer within `timeout`.
  void Release(Duration timeout);

  // Thread-safe. An Answer that waits asks its sink at once whether it is cancelled.
  void Wake();

  // Thread-safe. Whatever is given up (steps, Opens, the session) is given up without the stages' answers from `limit` on.
  void HurryBy(Time limit);

  const SessionId& id() const;
  // Thread-safe.
  Epoch epoch() const;
  // Length of the journal. Thread-safe.
  PastLen past_len() const;
  // Committed on every stage; what the next Answer can reuse. Valid until the next call.
  std::span<const Token> journal() const;
  // Another route took the session over (EPOCH_STALE): every later Answer fails at once.
  bool ended() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace meshnet
