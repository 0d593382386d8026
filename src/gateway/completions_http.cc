#include "gateway/completions_http.h"

#include <algorithm>
#include <utility>

#include "gateway/request_log.h"

namespace meshnet::gateway {
namespace {

// A client that closed its write side may be gone. Errors that come at once still get a status; after this the answer's head goes out, because
// only writing tells.
constexpr Duration kHalfClosedGrace = std::chrono::milliseconds(50);
constexpr Duration kLongWait = std::chrono::seconds(60);

// The one who waits for an answer on behalf of its client; runs on the connection's thread.
class Waiter {
 public:
  Waiter(std::shared_ptr<AnswerInFlight> answer, const Peer& peer, const AnswerEnvironment& environment, RequestLine line)
      : answer_(std::move(answer)), peer_(peer), environment_(environment), line_(std::move(line)) {}
  // The server lets go of a reply that it cannot even begin to send: then, too, nobody waits for the answer any more.
  ~Waiter() {
    if (!logged_) Gone();
  }

  // What the wait for a reply's head ended with.
  enum class Head { kFinished, kBegin, kGone };
  // kBegin: a stream has something to send or has been silent for long, or only writing tells whether the client is there.
  Head WaitForHead(bool stream) {
    const Time begun = environment_.clock->Now();
    Time until = stream ? begun + environment_.limits.head_wait : Time::max();
    for (;;) {
      if (answer_->finished()) return Head::kFinished;
      if (stream && answer_->has_output()) return Head::kBegin;
      const Time now = environment_.clock->Now();
      if (now >= until) return Head::kBegin;
      if (!stream) answer_->Take();  // silences the bell
      const PeerState state = peer_.WaitFor(answer_->wake_fd(), known_, std::min<Duration>(until - now, kLongWait));
      if (state == PeerState::kGone) return Head::kGone;
      if (state == PeerState::kHalfClosed && known_ == PeerState::kOpen) until = std::min(until, now + kHalfClosedGrace);
      known_ = state;
    }
  }

  // Sends events until the answer is whole; false when the client cannot be served any more.
  bool Stream(BodyWriter& writer) {
    if (known_ == PeerState::kHalfClosed && !writer.Write(kSseComment)) return Gone();
    for (;;) {
      const bool finished = answer_->finished();
      const std::string bytes = answer_->Take();
      if (!bytes.empty()) {
        if (!writer.Write(bytes)) return Gone();
        continue;
      }
      if (finished) break;
      if (!KeepWaiting(writer, kSseComment)) return Gone();
    }
    if (const auto failure = answer_->failure()) {
      environment_.metrics->CountRefusal(failure->reason);
      Log(failure->error.status);
      return writer.Write(SseEvent(failure->error.ToJson()));
    }
    if (answer_->abandoned()) return Gone();
    const bool sent = writer.Write(answer_->StreamEnd());
    Log(sent ? 200 : 499);
    return sent;
  }

  // A whole body for a client of which only writing tells whether it is there: blanks in front of JSON are still JSON.
  bool StreamWhole(BodyWriter& writer) {
    if (!writer.Write(" ")) return Gone();
    while (!answer_->finished()) {
      answer_->Take();
      if (!answer_->finished() && !KeepWaiting(writer, " ")) return Gone();
    }
    if (const auto failure = answer_->failure()) return writer.Write(Whole(*failure).body);
    if (answer_->abandoned()) return Gone();
    Log(200);
    return writer.Write(answer_->Body());
  }

  HttpReply Whole(const AnswerError& failure) {
    environment_.metrics->CountRefusal(failure.reason);
    Log(failure.error.status);
    return ErrorReply(failure);
  }

  // Its error can still have a status.
  bool failed_before_output() const { return answer_->failure() && !answer_->has_output(); }

  HttpReply Whole() {
    if (const auto failure = answer_->failure()) return Whole(*failure);
    HttpReply reply;
    reply.body = answer_->Body();
    Log(200);
    return reply;
  }

  bool Gone() {
    answer_->Abandon();
    Log(499);
    return false;
  }

 private:
  // Waits for news; a client that hears nothing for long gets `filler`. False: it is gone.
  bool KeepWaiting(BodyWriter& writer, std::string_view filler) {
    const AnswerLimits& limits = environment_.limits;
    const Duration silence = known_ == PeerState::kOpen ? limits.ping_interval : std::min(limits.ping_interval, limits.probe_interval);
    const Time before = environment_.clock->Now();
    const PeerState state = peer_.WaitFor(answer_->wake_fd(), known_, silence);
    if (state == PeerState::kGone) return false;
    const bool probe = state != known_;
    known_ = state;
    if (!probe && environment_.clock->Now() - before < silence) return true;
    return writer.Write(filler);
  }

  void Log(int status) {
    if (!std::exchange(logged_, true)) LogAnswer(line_, status, answer_->summary(), environment_.clock->Now());
  }

  const std::shared_ptr<AnswerInFlight> answer_;
  const Peer& peer_;
  const AnswerEnvironment& environment_;
  const RequestLine line_;
  PeerState known_ = PeerState::kOpen;
  bool logged_ = false;  // the request has ended, one way or the other
};

}  // namespace

HttpReply Completions::Handle(ApiKind kind, const HttpRequest& request, const Peer& peer, const std::string& owner) const {
  Metrics& metrics = *options_.environment.metrics;
  const std::shared_ptr<const Route::View> view = options_.route->view();
  if (!view) {
    metrics.CountRefusal("route-down");
    return ErrorReply(RouteDown(options_.route->trouble()));
  }
  auto parsed = options_.text->Parse(kind, request.body, view->limits.context_tokens);
  if (const auto* error = std::get_if<ApiError>(&parsed)) {
    metrics.CountRefusal("invalid-request");
    return ErrorReply(*error);
  }
  std::unique_ptr<ParsedRequest>& asked = std::get<std::unique_ptr<ParsedRequest>>(parsed);
  if (!asked->model.empty() && asked->model != options_.model_id && asked->model != options_.text->model_name()) {
    metrics.CountRefusal("unknown-model");
    ApiError error = MakeError(404, "The model \"" + asked->model + "\" is not served here; this is \"" + options_.model_id + "\".", "model_not_found");
    error.type = "invalid_request_error";
    error.param = "model";
    return ErrorReply(error);
  }
  const SessionPool::Counts counts = options_.environment.pool->counts();
  if (asked->choices.size() > counts.places_max()) {
    metrics.CountRefusal("invalid-request");
    return ErrorReply(TooManyChoices(asked->choices.back().prompt_index + 1, asked->choices.size(), counts));
  }
  // Another key of the same owner's prompt cache has sessions of its own.
  const std::string session_owner = owner + "\n" + asked->prompt_cache_key;
  const bool stream = asked->stream;
  RequestLine line{request.id, kind == ApiKind::kChat ? "chat" : "completion", owner, options_.environment.clock->Now()};
  auto waiter = std::make_shared<Waiter>(AnswerInFlight::Start(std::move(asked), session_owner, options_.environment), peer,
                                         options_.environment, std::move(line));
  const Waiter::Head head = waiter->WaitForHead(stream);
  HttpReply reply;
  if (head == Waiter::Head::kGone) {
    reply.status = 499;  // nobody reads it
    return reply;
  }
  if (stream) {
    if (head == Waiter::Head::kFinished && waiter->failed_before_output()) return waiter->Whole();
    reply.content_type = "text/event-stream";
    reply.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
    reply.stream = [waiter](BodyWriter& writer) { return waiter->Stream(writer); };
    return reply;
  }
  if (head == Waiter::Head::kFinished) return waiter->Whole();
  reply.stream_end = HttpReply::StreamEnd::kConnectionClose;
  reply.stream = [waiter](BodyWriter& writer) { return waiter->StreamWhole(writer); };
  return reply;
}

}  // namespace meshnet::gateway
