// What strikes a link: old and forged messages, cuts, broken streams, the death of an end.
#include <algorithm>
#include <utility>

#include "link.h"
#include "link_stream.h"
#include "wire/validate.h"

namespace meshnet::sim {

void Link::ReplayOld() {
  if (old_.empty()) return;
  const Sent& sent = old_[world_.random.Below(static_cast<uint32_t>(old_.size()))];
  Trace::Event event = sent.event;
  event.what = What::kZombie;
  world_.Note(event);
  Arrive(world_.loop.now() + Latency(), sent);
}

void Link::Forge() {
  std::vector<const Sent*> steps;
  for (const Sent& sent : old_) {
    if (sent.step != nullptr) steps.push_back(&sent);
  }
  if (steps.empty() || !worker_.alive() || worker_.not_serving()) return;
  const Sent& sent = *steps[world_.random.Below(static_cast<uint32_t>(steps.size()))];
  std::variant<IncomingStep, Refusal> read = ValidateStep(*sent.step, ShapeOf(worker_.description()), worker_.time().Now());
  if (!std::holds_alternative<IncomingStep>(read)) return;
  IncomingStep incoming = std::move(std::get<IncomingStep>(read));
  Alter(incoming.step);
  SentStep forged = NoteSent(incoming.step, world_.prefixes);
  forged.forged = !forged.digest;
  world_.collided.insert(forged.key.session);
  Trace::Event event = sent.event;
  event.what = What::kForged;
  event.key = forged.key;
  event.a = forged.seq.value;
  event.b = incoming.step.start.value;
  world_.Note(event);
  Submit(0, std::move(incoming), forged, stream_);
}

// Mostly what comes next in the session, so that it gets past the first checks, and then one or two other things.
void Link::Alter(Step& step) {
  Random& random = world_.random;
  if (const auto newest = newest_.find(step.key); newest != newest_.end() && newest->second.digest && random.Chance(700)) {
    step.seq = newest->second.seq.Next();
    step.start = newest->second.end;
    step.prefix_digest = *newest->second.digest;
  }
  for (uint32_t changes = random.Between(0, 2); changes > 0; --changes) {
    switch (random.Below(7)) {
      case 0: step.seq = StepSeq(step.seq.value + random.Below(3) + 1); break;
      case 1: step.start = PastLen(step.start.value + 1); break;
      case 2: step.start = PastLen(step.start.value - (step.start.value > 0 ? 1 : 0)); break;
      case 3: step.key.epoch = Epoch(std::max<uint64_t>(1, step.key.epoch.value + random.Below(3) - 1)); break;
      case 4: step.incarnation.bytes[0] ^= 1; break;
      case 5: step.prefix_digest.bytes[0] ^= 1; break;
      default: step.tokens.front() = step.tokens.front() == 0 ? 1 : 0; break;
    }
  }
}

void Link::CheckAnswered() {
  for (const auto& [number, arrival] : arrivals_) {
    if (arrival.stream == stream_->number()) world_.checker.Fail("a step of session " + IdPrefix(arrival.step.key.session) + " was never answered");
  }
}

void Link::Cut(bool requests, bool replies, Duration duration) {
  Trace::Event event = EventOf(What::kCut);
  event.a = static_cast<uint64_t>(requests) * 2 + static_cast<uint64_t>(replies);
  event.b = Micros(duration);
  world_.Note(event);
  const Time until = world_.loop.now() + duration;
  if (requests) requests_cut_until_ = std::max(requests_cut_until_, until);
  if (replies) replies_cut_until_ = std::max(replies_cut_until_, until);
}

// Both ends notice, each in its own time; what is on its way may still arrive.
void Link::BreakStream() {
  FailAll(true, "the stream broke");
  const std::shared_ptr<Stream> broken = stream_;
  NewStream();
  const Time noticed = std::max(world_.loop.now(), requests_cut_until_) + Latency();
  worker_.time().At(noticed, [this, broken] {
    world_.Note(EventOf(What::kStreamEnds));
    if (worker_.alive() && !worker_.not_serving()) worker_.Post([broken](ShardCore& core) { core.EndStream(broken); });
  });
}

void Link::PeerDied(bool heard) {
  if (heard) FailAll(false, "the connection was reset");
  arrivals_.clear();
  NewStream();
}

void Link::Sever() {
  FailAll(false, "the gateway is dead");
  BreakStream();
  severed_ = true;
}

void Link::Heal() { requests_cut_until_ = replies_cut_until_ = Time{}; }

}  // namespace meshnet::sim
