#include "trace.h"

#include <cstdio>
#include <cstring>

namespace meshnet::sim {
namespace {

// The name of an event and of its three numbers; null: unused.
struct Words {
  const char* what;
  const char* a;
  const char* b;
  const char* c;
};

Words WordsOf(What what) {
  switch (what) {
    case What::kOpen: return {"open", "reserve", nullptr, nullptr};
    case What::kStep: return {"step", "step", "start", "tokens"};
    case What::kCancel: return {"cancel", nullptr, nullptr, nullptr};
    case What::kRelease: return {"release", nullptr, nullptr, nullptr};
    case What::kDescribe: return {"describe", nullptr, nullptr, nullptr};
    case What::kDrain: return {"drain", nullptr, nullptr, nullptr};
    case What::kStreamEnds: return {"stream-ends", nullptr, nullptr, nullptr};
    case What::kOpened: return {"opened", "past", "next", "credit"};
    case What::kResult: return {"result", "step", "past", "replayed"};
    case What::kRefused: return {"refused", "reason", "detail", nullptr};
    case What::kReleased: return {"released", "outcome", nullptr, nullptr};
    case What::kDescribed: return {"described", "state", nullptr, nullptr};
    case What::kDraining: return {"draining", nullptr, nullptr, nullptr};
    case What::kFault: return {"fault", "call", nullptr, nullptr};
    case What::kLost: return {"request-lost", "known", nullptr, nullptr};
    case What::kReplyLost: return {"reply-lost", "known", nullptr, nullptr};
    case What::kRepeated: return {"repeated", "after-us", nullptr, nullptr};
    case What::kStuck: return {"stuck", "for-us", nullptr, nullptr};
    case What::kCut: return {"cut", "direction", "for-us", nullptr};
    case What::kZombie: return {"zombie-message", nullptr, nullptr, nullptr};
    case What::kForged: return {"forged-step", "step", "start", nullptr};
    case What::kRun: return {"engine", "steps", "took-us", nullptr};
    case What::kStarts: return {"starts", "incarnation", nullptr, nullptr};
    case What::kServes: return {"serves", nullptr, nullptr, nullptr};
    case What::kCrashes: return {"crashes", nullptr, nullptr, nullptr};
    case What::kPauses: return {"pauses", "for-us", nullptr, nullptr};
    case What::kClockJumps: return {"clock-jumps", "by-us", nullptr, nullptr};
    case What::kDrainEnds: return {"drain-ends", nullptr, nullptr, nullptr};
    case What::kEngineFault: return {"engine-fault", "kind", nullptr, nullptr};
    case What::kGatewayDies: return {"gateway-dies", nullptr, nullptr, nullptr};
    case What::kHealed: return {"healed", nullptr, nullptr, nullptr};
    case What::kAsks: return {"asks", "prompt", "tokens-max", "seed"};
    case What::kToken: return {"token", "index", "token", nullptr};
    case What::kAnswered: return {"answered", "end", "tokens", "cached"};
    case What::kFailed: return {"failed", "kind", "tokens", nullptr};
    case What::kTurnRefused: return {"turn-refused", "why", nullptr, nullptr};
    case What::kTakesOver: return {"takes-over", "generation", nullptr, nullptr};
    case What::kLeaves: return {"leaves", nullptr, nullptr, nullptr};
  }
  return {"?", nullptr, nullptr, nullptr};
}

uint64_t Fold(uint64_t hash, uint64_t value) {
  uint64_t x = (hash ^ value) * 0x9e3779b97f4a7c15;
  return x ^ x >> 29;
}

uint64_t FirstBytes(const SessionId& id) {
  uint64_t bytes = 0;
  std::memcpy(&bytes, id.bytes.data(), sizeof bytes);
  return bytes;
}

std::string PlaceText(Place place) { return place.kind == '-' ? "" : place.kind + std::to_string(place.number); }

}  // namespace

void Trace::Note(Time now, const Event& event) {
  hash_ = Fold(hash_, static_cast<uint64_t>(now.time_since_epoch().count()));
  hash_ = Fold(hash_, static_cast<uint64_t>(event.what) | static_cast<uint64_t>(event.from.number) << 8 | static_cast<uint64_t>(event.to.number) << 16 |
                          static_cast<uint64_t>(event.from.kind) << 24 | static_cast<uint64_t>(event.to.kind) << 32);
  for (uint64_t value : {FirstBytes(event.key.session), event.key.epoch.value, event.a, event.b, event.c}) hash_ = Fold(hash_, value);
  Line& line = lines_[count_++ % kTail];
  line = {now, event};
  if (prints_) std::printf("%s\n", Text(line).c_str());
}

std::string Trace::Text(const Line& line) {
  const Event& event = line.event;
  const Words words = WordsOf(event.what);
  char time[32];
  std::snprintf(time, sizeof time, "%14.6f ", std::chrono::duration<double>(line.when.time_since_epoch() - std::chrono::hours(1)).count());
  std::string text = time;
  std::string place = PlaceText(event.from);
  if (event.to.kind != '-') place += (place.empty() ? "" : ">") + PlaceText(event.to);
  place.resize(std::max<size_t>(place.size(), 8), ' ');
  text += place + words.what;
  if (event.what == What::kRefused) {
    text += std::string(" ") + Name(static_cast<Reason>(event.a)) + " " + Name(static_cast<Detail>(event.b));
  } else {
    if (words.a != nullptr) text += std::string(" ") + words.a + "=" + std::to_string(event.a);
    if (words.b != nullptr) text += std::string(" ") + words.b + "=" + std::to_string(event.b);
    if (words.c != nullptr) text += std::string(" ") + words.c + "=" + std::to_string(event.c);
  }
  if (!event.key.session.is_zero()) text += " session=" + IdPrefix(event.key.session) + " epoch=" + std::to_string(event.key.epoch.value);
  return text;
}

std::string Trace::Tail() const {
  std::string text;
  const uint64_t shown = std::min<uint64_t>(count_, kTail);
  for (uint64_t i = count_ - shown; i < count_; ++i) text += Text(lines_[i % kTail]) + "\n";
  return text;
}

}  // namespace meshnet::sim
