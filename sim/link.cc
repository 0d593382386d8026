#include "link.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "link_stream.h"
#include "wire/convert.h"
#include "wire/error_detail.h"
#include "wire/validate.h"
#include "wire/validate_reply.h"

namespace meshnet::sim {
namespace {

namespace pb = shard::v1;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr size_t kOldMax = 64;

// What was refused comes out of the wire as it went in.
Refusal ThroughWire(const Refusal& refusal) {
  std::optional<Refusal> read = FromProto(ToProto(refusal));
  MESHNET_CHECK(read.has_value());
  return std::move(*read);
}

Trace::Event Opened(const OpenReply& reply) { return {What::kOpened, {}, {}, {}, reply.past_len.value, reply.next_step.value, reply.credit.step_seq_max.value}; }
Trace::Event Released(const ReleaseOutcome& outcome) { return {What::kReleased, {}, {}, {}, static_cast<uint64_t>(outcome)}; }
Trace::Event Described(const ShardDescription& d) { return {What::kDescribed, {}, {}, {}, static_cast<uint64_t>(d.state)}; }
Trace::Event Counted(const ShardStats&) { return {What::kDescribed}; }
Trace::Event Drained(const ShardState& state) { return {What::kDraining, {}, {}, {}, static_cast<uint64_t>(state)}; }
Trace::Event Computed(const StepResult& result) { return {What::kResult, {}, {}, {}, result.seq.value, result.past_len.value, result.replayed}; }

}  // namespace

Link::Link(World& world, Place gateway, ProcessTime& caller, Worker& worker)
    : world_(world), gateway_(gateway), caller_(caller), worker_(worker), stream_(std::make_shared<Stream>(*this, ++streams_)) {
  worker_.OnDeath([this](bool heard) { PeerDied(heard); });
}

Link::~Link() = default;

std::string Link::address() const { return "w" + std::to_string(worker_.place().number); }

Duration Link::Latency() { return world_.random.Between(world_.swarm.link.latency_min, world_.swarm.link.latency_max); }

template <typename T>
uint64_t Link::Register(Time deadline, Done<T> done, Lane lane) {
  const uint64_t call = next_call_++;
  auto entry = std::make_unique<CallOf<T>>(std::move(done));
  entry->stream = lane == Lane::kStream ? stream_->number() : 0;
  entry->timer = caller_.At(world_.loop.now() + (deadline - caller_.Now()), [this, call] { Fail(call, "no answer within the deadline"); });
  calls_.emplace(call, std::move(entry));
  return call;
}

void Link::Send(Lane lane, uint64_t call, Sent sent) {
  if (severed_) return FailLater(call, "the gateway is dead");
  const LinkTrouble& trouble = world_.swarm.link;
  Random& random = world_.random;
  const Time now = world_.loop.now();
  Trace::Event event = sent.event;
  if (event.what != What::kDescribe) {
    if (old_.size() < kOldMax) old_.emplace_back();
    old_[old_next_++ % kOldMax] = sent;
  }
  event.b = 0;
  if (now < requests_cut_until_ || (IsOrdered(lane) && deaf_to_requests_) || (!world_.healed && random.Chance(trouble.lose_request))) {
    event.what = What::kLost;
    return Lose(lane, call, event, now < requests_cut_until_, deaf_to_requests_);
  }
  Time when = now + Latency();
  if (!world_.healed && random.Chance(trouble.stick)) {
    when += random.Between(Duration(0), trouble.stuck_max);
    event.what = What::kStuck;
    event.a = Micros(when - now);
    world_.Note(event);
  }
  if (IsOrdered(lane)) when = last_request_ = std::max(when, last_request_);
  Arrive(when, sent);
  if (!world_.healed && random.Chance(trouble.repeat)) {
    const Time again = when + random.Between(Duration(0), random.Coin() ? trouble.latency_max * 2 : trouble.stuck_max);
    event.what = What::kRepeated;
    event.a = Micros(again - now);
    world_.Note(event);
    Arrive(again, sent);
  }
}

// A single message, or on a stream all that follows it too, until its ends notice.
void Link::Lose(Lane lane, uint64_t call, Trace::Event event, bool cut, bool& deaf) {
  const bool known = !cut && world_.random.Chance(world_.swarm.link.known_loss);
  event.a = known;
  world_.Note(event);
  if (!IsOrdered(lane)) {
    if (known) FailLater(call, "it was lost on its way");
    return;
  }
  if (std::exchange(deaf, true)) return;
  const Duration noticed = known ? Latency() : world_.random.Between(milliseconds(1), seconds(10));
  caller_.At(world_.loop.now() + noticed, [this, stream = stream_->number()] {
    if (stream == stream_->number()) BreakStream();
  });
}

void Link::NewStream() {
  stream_ = std::make_shared<Stream>(*this, ++streams_);
  deaf_to_requests_ = deaf_to_replies_ = false;
}

void Link::Arrive(Time when, const Sent& sent) {
  worker_.time().At(when, [this, sent] {
    world_.Note(sent.event);
    sent.arrive();
  });
}

template <typename T>
void Link::Ask(uint64_t call, std::function<Reply<T>(ShardCore&)> ask, Trace::Event (*describe)(const T&)) {
  if (!worker_.alive()) return FailLater(call, "nobody listens there");
  if (std::optional<Refusal> refusal = worker_.not_serving()) return Answer<T>(call, Lane::kUnary, std::move(*refusal), describe);
  worker_.Post([this, call, ask = std::move(ask), describe](ShardCore& core) { Answer<T>(call, Lane::kUnary, ask(core), describe); });
}

template <typename T>
void Link::Answer(uint64_t call, Lane lane, Reply<T> reply, Trace::Event (*describe)(const T&)) {
  const LinkTrouble& trouble = world_.swarm.link;
  Random& random = world_.random;
  const Time now = world_.loop.now();
  Trace::Event event = EventOf(What::kFault);
  if (const auto* refusal = std::get_if<Refusal>(&reply)) {
    event.what = What::kRefused;
    event.a = static_cast<uint64_t>(refusal->reason);
    event.b = static_cast<uint64_t>(refusal->detail);
    world_.checker.Mark(std::string("refused ") + Name(refusal->reason) + " " + Name(refusal->detail));
    reply = ThroughWire(*refusal);
  } else if (const auto* value = std::get_if<T>(&reply)) {
    event = describe(*value);
  }
  event.from = worker_.place();
  event.to = gateway_;
  if (severed_) return;
  if (now < replies_cut_until_ || (IsOrdered(lane) && deaf_to_replies_) || (!world_.healed && random.Chance(trouble.lose_reply))) {
    event.what = What::kReplyLost;
    return Lose(lane, call, event, now < replies_cut_until_, deaf_to_replies_);
  }
  Time when = now + Latency();
  if (!world_.healed && random.Chance(trouble.stick)) when += random.Between(Duration(0), trouble.stuck_max);
  if (IsOrdered(lane)) when = last_reply_ = std::max(when, last_reply_);
  // A reply moves, and functions want to be copied.
  auto kept = std::make_shared<Reply<T>>(std::move(reply));
  caller_.At(when, [this, call, kept, event] { Deliver<T>(call, std::move(*kept), event); });
}

template <typename T>
void Link::Deliver(uint64_t call, Reply<T> reply, Trace::Event event) {
  if (severed_) return;
  auto entry = calls_.extract(call);
  // Late, or the second answer to what was asked once.
  if (entry.empty()) return;
  world_.loop.Cancel(entry.mapped()->timer);
  world_.Note(event);
  static_cast<CallOf<T>&>(*entry.mapped()).done(std::move(reply));
}

void Link::FailLater(uint64_t call, const char* why) {
  caller_.At(world_.loop.now() + Latency(), [this, call, why] { Fail(call, why); });
}

void Link::Fail(uint64_t call, const char* why) {
  auto entry = calls_.extract(call);
  if (entry.empty()) return;
  world_.loop.Cancel(entry.mapped()->timer);
  Trace::Event event = EventOf(What::kFault);
  event.a = call;
  world_.Note(event);
  entry.mapped()->Fail(address() + ": " + why);
}

void Link::FailAll(bool only_stream, const char* why) {
  for (const auto& [call, entry] : calls_) {
    if (!only_stream || entry->stream == stream_->number()) FailLater(call, why);
  }
}

void Link::Describe(Time deadline, Done<ShardDescription> done) {
  const uint64_t call = Register<ShardDescription>(deadline, std::move(done), Lane::kUnary);
  const auto arrive = [this, call] {
    if (!worker_.alive()) return FailLater(call, "nobody listens there");
    Result<ShardDescription> read = ValidateDescription(ToProto(worker_.description()));
    if (!read.ok()) return world_.checker.Fail("a description does not come through the wire: " + read.status().message());
    Answer<ShardDescription>(call, Lane::kUnary, std::move(read).value(), &Described);
  };
  Send(Lane::kUnary, call, {EventOf(What::kDescribe), arrive, nullptr});
}

void Link::Open(OpenRequest request, Time deadline, Done<OpenReply> done) {
  Trace::Event event = EventOf(What::kOpen);
  event.key = request.key;
  event.a = request.reserve_tokens;
  Epoch& newest = world_.epochs[request.key.session];
  newest = std::max(newest, request.key.epoch);
  const uint64_t call = Register<OpenReply>(deadline, std::move(done), Lane::kUnary);
  world_.prefixes.Begin(request.key.session, request.cache_salt);
  const auto arrive = [this, call, wire = ToProto(request)] {
    std::variant<OpenRequest, Refusal> read = ValidateOpen(wire);
    MESHNET_CHECK(std::holds_alternative<OpenRequest>(read));
    const auto ask = [this, open = std::get<OpenRequest>(read)](ShardCore& core) -> Reply<OpenReply> {
      std::variant<OpenReply, Refusal> reply = core.Open(open);
      if (auto* refusal = std::get_if<Refusal>(&reply)) return std::move(*refusal);
      worker_.audit().OnOpen(open.key, worker_.time().Now());
      Result<OpenReply> through = ValidateOpenReply(ToProto(std::get<OpenReply>(reply)));
      MESHNET_CHECK(through.ok());
      return std::move(through).value();
    };
    Ask<OpenReply>(call, ask, &Opened);
  };
  Send(Lane::kUnary, call, {event, arrive, nullptr});
}

void Link::Release(SessionKey key, Time deadline, Done<ReleaseOutcome> done) {
  Trace::Event event = EventOf(What::kRelease);
  event.key = key;
  const uint64_t call = Register<ReleaseOutcome>(deadline, std::move(done), Lane::kUnary);
  const auto ask = [this, key](ShardCore& core) -> Reply<ReleaseOutcome> {
    const ReleaseOutcome outcome = core.Release(key);
    worker_.audit().OnRelease(key, outcome, worker_.time().Now());
    return outcome;
  };
  Send(Lane::kUnary, call, {event, [this, call, ask] { Ask<ReleaseOutcome>(call, ask, &Released); }, nullptr});
}

void Link::Stats(Time deadline, Done<ShardStats> done) {
  const uint64_t call = Register<ShardStats>(deadline, std::move(done), Lane::kUnary);
  const auto ask = [](ShardCore& core) -> Reply<ShardStats> { return core.Stats(); };
  Send(Lane::kUnary, call, {EventOf(What::kDescribe), [this, call, ask] { Ask<ShardStats>(call, ask, &Counted); }, nullptr});
}

void Link::Drain(Time deadline, Done<ShardState> done) {
  const uint64_t call = Register<ShardState>(deadline, std::move(done), Lane::kUnary);
  const auto arrive = [this, call] {
    if (!worker_.alive()) return FailLater(call, "nobody listens there");
    worker_.BeginDrain();
    Answer<ShardState>(call, Lane::kUnary, ShardState::kDraining, &Drained);
  };
  Send(Lane::kUnary, call, {EventOf(What::kDrain), arrive, nullptr});
}

void Link::Forward(const Step& step, Time deadline, Done<StepResult> done) {
  Trace::Event event = EventOf(What::kStep);
  event.key = step.key;
  event.a = step.seq.value;
  event.b = step.start.value;
  event.c = step.tokens.size();
  const uint64_t call = Register<StepResult>(deadline, std::move(done), Lane::kStream);
  const auto wire = std::make_shared<const pb::Step>(ToProto(step, call, caller_.Now()));
  const SentStep sent = NoteSent(step, world_.prefixes);
  newest_[step.key] = sent;
  const auto arrive = [this, call, wire, sent, stream = stream_] { ArriveStep(call, wire, sent, stream); };
  Send(Lane::kStream, call, {event, arrive, wire});
}

void Link::ArriveStep(uint64_t call, const std::shared_ptr<const pb::Step>& wire, const SentStep& step, const std::shared_ptr<Stream>& stream) {
  if (!worker_.alive()) return FailLater(call, "nobody listens there");
  if (std::optional<Refusal> refusal = worker_.not_serving()) return Answer<StepResult>(call, Lane::kStream, std::move(*refusal), &Computed);
  std::variant<IncomingStep, Refusal> read = ValidateStep(*wire, ShapeOf(worker_.description()), worker_.time().Now());
  if (auto* refusal = std::get_if<Refusal>(&read)) return Answer<StepResult>(call, Lane::kStream, std::move(*refusal), &Computed);
  Submit(call, std::move(std::get<IncomingStep>(read)), step, stream);
}

// Each arrival is answered by itself, also when one message comes twice.
void Link::Submit(uint64_t call, IncomingStep incoming, const SentStep& step, const std::shared_ptr<Stream>& stream) {
  const uint64_t arrival = next_arrival_++;
  arrivals_[arrival] = {call, stream->number(), step};
  auto submitted = std::make_shared<SubmittedStep>(SubmittedStep{arrival, std::move(incoming)});  // a step moves, and functions want to be copied
  worker_.Post([this, arrival, stream, submitted](ShardCore& core) {
    worker_.audit().OnSubmit(arrivals_.at(arrival).step, worker_.time().Now());
    core.Submit(std::move(*submitted), stream);
  });
}

void Link::AnswerSteps(uint64_t stream, std::vector<StepAnswer> answers) {
  for (StepAnswer& answer : answers) {
    const Arrival arrival = std::move(arrivals_.extract(answer.request_id).mapped());
    worker_.audit().OnAnswer(arrival.step, answer, worker_.time().Now());
    if (stream != stream_->number()) continue;  // it is broken
    NoteEngineFailure(arrival.step, answer);
    if (auto* refusal = std::get_if<Refusal>(&answer.outcome)) {
      Answer<StepResult>(arrival.call, Lane::kStream, std::move(*refusal), &Computed);
      continue;
    }
    const RecordedResult& recorded = std::get<RecordedResult>(answer.outcome);
    Result<StepResult> read = ValidateStepResult(ToProto(*recorded.result, recorded.replayed));
    if (!read.ok()) return world_.checker.Fail("a result does not come through the wire: " + read.status().message());
    if (recorded.replayed) world_.checker.Mark("replayed");
    Answer<StepResult>(arrival.call, Lane::kStream, std::move(read).value(), &Computed);
  }
}

void Link::NoteEngineFailure(const SentStep& step, const StepAnswer& answer) {
  const auto* refusal = std::get_if<Refusal>(&answer.outcome);
  if (refusal == nullptr || refusal->reason != Reason::kExecFailed) return;
  world_.checker.EngineFailed(step.key.session, worker_.place().number, step.start);
}

void Link::Cancel(SessionKey key) {
  Trace::Event event = EventOf(What::kCancel);
  event.key = key;
  const auto arrive = [this, key] {
    if (worker_.alive() && !worker_.not_serving()) worker_.Post([key](ShardCore& core) { core.Cancel(key); });
  };
  Send(Lane::kStream, 0, {event, arrive, nullptr});
}

}  // namespace meshnet::sim
