#include "gateway/answer_in_flight.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <exception>
#include <utility>

namespace meshnet::gateway {
namespace {

double Seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

// Takes one choice's tokens on the driver's thread.
class AnswerInFlight::Sink : public AnswerSink {
 public:
  Sink(AnswerInFlight& answer, size_t choice) : answer_(answer), choice_(choice) {}

  SinkVerdict OnToken(const SampledToken& token) override {
    const Time now = answer_.environment_.clock->Now();
    if (last_) {
      answer_.environment_.metrics->ObserveInterToken(Seconds(now - *last_));
    } else {
      answer_.FirstToken(now);
    }
    last_ = now;
    answer_.CountToken(choice_);
    AnswerWriter::Fed fed = answer_.choices_[choice_].writer->Feed(token);
    if (!answer_.Push(choice_, std::move(fed.events))) return SinkVerdict::kStop;
    return fed.stopped ? SinkVerdict::kStop : SinkVerdict::kGoOn;
  }
  bool Cancelled() override { return answer_.abandoned(); }

 private:
  AnswerInFlight& answer_;
  const size_t choice_;
  std::optional<Time> last_;
};

std::shared_ptr<AnswerInFlight> AnswerInFlight::Start(std::unique_ptr<ParsedRequest> request, std::string owner,
                                                      const AnswerEnvironment& environment) {
  const int wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  std::shared_ptr<AnswerInFlight> answer(new AnswerInFlight(std::move(request), std::move(owner), environment, wake_fd));
  if (wake_fd < 0) {
    answer->Fail({MakeError(503, "The gateway has no file descriptor left.", "out_of_descriptors"), std::chrono::seconds(1), "out-of-descriptors"});
    return answer;
  }
  const size_t count = answer->choices_.size();
  auto reserved = environment.pool->Reserve(count);
  if (const auto* full = std::get_if<SessionPool::Counts>(&reserved)) {
    answer->Fail(LineFull(count, *full));
    return answer;
  }
  auto& places = std::get<std::vector<SessionPool::Place>>(reserved);
  for (size_t i = 0; i < count; ++i) answer->choices_[i].place = std::move(places[i]);
  answer->running_ = count;
  for (size_t i = 0; i < count; ++i) {
    if (environment.threads->Submit([answer, i] { answer->Run(i); }) != GrowingThreads::Submitted::kStopped) continue;
    answer->Fail(FromRefusal(TurnRefusal::kStopped, environment.pool->counts()));
    break;
  }
  return answer;
}

AnswerInFlight::AnswerInFlight(std::unique_ptr<ParsedRequest> request, std::string owner, const AnswerEnvironment& environment, int wake_fd)
    : request_(std::move(request)), owner_(std::move(owner)), environment_(environment), wake_fd_(wake_fd), start_(environment.clock->Now()),
      choices_(request_->choices.size()) {
  for (size_t i = 0; i < choices_.size(); ++i) choices_[i].writer = request_->NewWriter(request_->choices[i].index);
}

AnswerInFlight::~AnswerInFlight() {
  if (wake_fd_ >= 0) ::close(wake_fd_);
}

void AnswerInFlight::Run(size_t choice) {
  try {
    Answer(choice);
  } catch (const std::exception&) {  // memory, or a library's opinion: this answer ends, the gateway does not
    Fail({MakeError(500, "The gateway failed on this answer."), std::nullopt, "internal"});
  }
}

void AnswerInFlight::Answer(size_t choice) {
  const ParsedRequest::Choice& asked = request_->choices[choice];
  const AnswerEnvironment& with = environment_;
  SessionPool::Place place = *std::exchange(choices_[choice].place, std::nullopt);
  if (abandoned()) return;
  auto turn = with.pool->AcquireAt(std::move(place), owner_, asked.prompt, start_ + with.limits.queue_limit, [this] { return abandoned(); });
  if (const auto* refused = std::get_if<TurnRefusal>(&turn)) return Fail(FromRefusal(*refused, with.pool->counts()));
  with.metrics->ObserveQueue(Seconds(with.clock->Now() - start_));

  AnswerRequest request;
  request.prompt = asked.prompt;
  request.sampling = asked.sampling;
  request.tokens_max = request_->tokens_max;
  Sink sink(*this, choice);
  std::variant<AnswerReport, AnswerFailure> outcome = AnswerFailure{};
  {
    SessionPool::Lease lease = std::move(std::get<SessionPool::Lease>(turn));
    outcome = lease.session().Answer(request, sink);
    const auto* failure = std::get_if<AnswerFailure>(&outcome);
    if (failure != nullptr && (failure->kind == AnswerFailure::Kind::kRouteDown || failure->kind == AnswerFailure::Kind::kInternal)) lease.Discard();
  }  // the session is free before the client hears that the answer is whole: its next request finds it
  if (const auto* failure = std::get_if<AnswerFailure>(&outcome)) {
    Count(failure->report);
    {
      std::lock_guard lock(mutex_);
      choices_[choice].report = failure->report;
    }
    return Fail(FromFailure(*failure));
  }
  End(choice, std::get<AnswerReport>(outcome));
}

void AnswerInFlight::End(size_t choice, const AnswerReport& report) {
  Count(report);
  ChoiceState& state = choices_[choice];
  if (!abandoned() && report.end != AnswerEnd::kCancelled) {
    std::vector<nlohmann::ordered_json> events = state.writer->End(report.end == AnswerEnd::kLength);
    Push(choice, std::move(events));
    if (!request_->stream) state.body = state.writer->Choice();
  }
  {
    std::lock_guard lock(mutex_);
    state.report = report;
    state.ended = true;
    --running_;
  }
  Ring();
}

void AnswerInFlight::Fail(AnswerError error) {
  {
    std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::move(error);
    abandoned_ = true;  // the other choices have nobody to answer to
  }
  WakeChoices();
  Ring();
}

void AnswerInFlight::Count(const AnswerReport& report) {
  environment_.metrics->CountAnswer(report.prompt_tokens, report.cached_tokens, report.generated_tokens, report.replays);
}

void AnswerInFlight::CountToken(size_t choice) {
  std::lock_guard lock(mutex_);
  ++choices_[choice].report.generated_tokens;
}

void AnswerInFlight::FirstToken(Time now) {
  const double seconds = Seconds(now - start_);
  environment_.metrics->ObserveFirstToken(seconds);
  std::lock_guard lock(mutex_);
  if (first_token_seconds_ < 0) first_token_seconds_ = seconds;
}

bool AnswerInFlight::Push(size_t choice, std::vector<nlohmann::ordered_json> events) {
  if (abandoned()) return false;
  if (!request_->stream) return true;
  ChoiceState& state = choices_[choice];
  std::string bytes;
  if (!state.begun) {
    state.begun = true;
    for (const auto& event : state.writer->Begin()) bytes += SseEvent(event);
  }
  for (const auto& event : events) bytes += SseEvent(event);
  if (bytes.empty()) return true;
  {
    std::unique_lock lock(mutex_);
    const bool room = room_.wait_for(lock, environment_.limits.blocked_limit, [&] {
      return abandoned() || buffer_.size() < environment_.limits.buffer_bytes_max;
    });
    if (!room) abandoned_ = true;  // a client that takes nothing must not keep a session
    if (abandoned()) {
      lock.unlock();
      WakeChoices();
      Ring();
      return false;
    }
    buffer_ += bytes;
  }
  Ring();
  return true;
}

void AnswerInFlight::Ring() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_fd_, &one, sizeof(one));
}

std::string AnswerInFlight::Take() {
  uint64_t rung = 0;
  [[maybe_unused]] const ssize_t read = ::read(wake_fd_, &rung, sizeof(rung));
  std::string bytes;
  {
    std::lock_guard lock(mutex_);
    bytes.swap(buffer_);
  }
  room_.notify_all();
  return bytes;
}

bool AnswerInFlight::finished() const {
  std::lock_guard lock(mutex_);
  return running_ == 0 || failure_ || abandoned();
}

bool AnswerInFlight::has_output() const {
  std::lock_guard lock(mutex_);
  return !buffer_.empty();
}

std::optional<AnswerError> AnswerInFlight::failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

void AnswerInFlight::Abandon() {
  {
    std::lock_guard lock(mutex_);  // a choice that is about to wait for room sees it
    abandoned_ = true;
  }
  WakeChoices();
}

void AnswerInFlight::WakeChoices() {
  room_.notify_all();
  environment_.pool->Wake();
}

Usage AnswerInFlight::TotalUsage() const {
  Usage usage;
  for (size_t i = 0; i < choices_.size(); ++i) {
    const AnswerReport& report = choices_[i].report;
    usage.completion_tokens += report.generated_tokens;
    // The n choices of one prompt follow each other.
    if (i > 0 && request_->choices[i].prompt_index == request_->choices[i - 1].prompt_index) continue;
    usage.prompt_tokens += static_cast<uint32_t>(request_->choices[i].prompt.size());
    usage.cached_tokens += report.cached_tokens;
  }
  return usage;
}

std::string AnswerInFlight::Body() const {
  std::lock_guard lock(mutex_);
  std::vector<nlohmann::ordered_json> bodies;
  for (const ChoiceState& choice : choices_) bodies.push_back(choice.body);
  return Dump(request_->Body(std::move(bodies), TotalUsage()));
}

std::string AnswerInFlight::StreamEnd() const {
  std::lock_guard lock(mutex_);
  std::string bytes;
  if (request_->include_usage) bytes += SseEvent(request_->UsageEvent(TotalUsage()));
  return bytes + kSseDone;
}

AnswerInFlight::Summary AnswerInFlight::summary() const {
  std::lock_guard lock(mutex_);
  Summary summary;
  summary.usage = TotalUsage();
  for (const ChoiceState& choice : choices_) summary.replays += choice.report.replays;
  summary.first_token_seconds = first_token_seconds_;
  return summary;
}

}  // namespace meshnet::gateway
