// Every state of the hot KV that is at most MESHNET_KV_DEPTH calls (8 unless told) away from the start, for two sessions, three epochs, two
// sequences, a budget of four tokens and a window of two steps: breadth first over all calls and engine outcomes, removals confirmed late.
// After every call: HotKv's own invariants, equality with the model, and what section 6 of the design says of the change. What must be refused
// is tried in every state and changes none. Two symmetries are left out: s2 is never known before s1, and first epochs are 1.
#include <gtest/gtest.h>
#include <xxhash.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <tuple>
#include <unordered_set>
#include <vector>

#include "twinned_kv.h"
#include "protocol/prefix_digest.h"

namespace meshnet::kv {
namespace {

constexpr uint32_t kSequences = 2, kTokens = 4, kWindow = 2, kChunk = 2, kPending = 3, kTombstones = 2, kSliding = 1, kSlack = 1;
constexpr uint64_t kEpochs = 3;
constexpr Duration kTick = std::chrono::seconds(150), kTtl = 2 * kTick;
constexpr int64_t kTicksRemembered = 4;

Token TokenAt(uint64_t position, uint64_t content) { return static_cast<Token>((position * 7 + content * 101 + 3) % 1000); }

// The digest of the first tokens of content 0: the only content that is ever committed here.
const PrefixDigest& DigestAt(size_t length) {
  static const std::vector<PrefixDigest> digests = [] {
    std::vector<PrefixDigest> made;
    std::vector<Token> tokens;
    for (size_t i = 0; i <= kTokens + 2; ++i) {
      made.push_back(DigestOfPrefix("", tokens));
      tokens.push_back(TokenAt(i, 0));
    }
    return made;
  }();
  return digests.at(length);
}

// How many cells each sequence holds in the engine, and from where they are intact.
class Cells : public SequenceProbe {
 public:
  struct Sequence {
    uint32_t held = 0, intact = 0;
    bool broken = false;
  };
  PastLen IntactFrom(SequenceId sequence) const override { return PastLen(At(sequence).intact); }
  Sequence& At(SequenceId sequence) { return sequences_.at(static_cast<size_t>(sequence.value)); }
  const Sequence& At(SequenceId sequence) const { return sequences_.at(static_cast<size_t>(sequence.value)); }

  void Run(SequenceId sequence, const KvModel::Content& content, StepFate fate) {
    Sequence& cells = At(sequence);
    cells.held = content.start.value;
    if (cells.held == 0) cells.intact = 0;
    cells.broken = fate == StepFate::kLost;
    if (fate != StepFate::kDone) return;
    cells.held += static_cast<uint32_t>(content.tokens.size());
    if (cells.held > kSliding + kSlack) cells.intact = std::max(cells.intact, cells.held - kSliding - kSlack);
  }

 private:
  std::array<Sequence, kSequences> sequences_;
};

// One call, with all that it takes to make it again and to tell it.
struct Call {
  enum class Kind : uint8_t { kOpen, kStep, kStart, kSettle, kCancel, kRelease, kConfirm, kAdvance, kExpire, kDrain, kFinishDrain, kPoison };
  Kind kind = Kind::kOpen;
  uint8_t session = 1, epoch = 1;
  uint8_t reserve = 0;
  uint8_t step = 0, start = 0, tokens = 0, ack = 0, content = 0;
  bool decode = false, wrong_digest = false, other_incarnation = false, wrong_token = false;
  int8_t deadline = -1;  // ticks; none below 0
  StepFate fate = StepFate::kDone;
  bool gone = false;     // settles what a session that ended left behind
  uint8_t count = 0;     // sequence, or ticks

  std::string Text() const;
};

std::string Call::Text() const {
  const std::string who = " s" + std::to_string(session) + " epoch=" + std::to_string(epoch);
  auto with = [](const char* key, uint64_t value) { return std::string(" ") + key + "=" + std::to_string(value); };
  const uint64_t tick_ms = static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(kTick).count());
  switch (kind) {
    case Kind::kOpen: return "open" + who + with("reserve", reserve);
    case Kind::kStep:
      return "step" + who + with("step", step) + with("start", start) + with("tokens", tokens) + (decode ? " kind=decode" : "") +
             with("ack", ack) + (content ? with("content", content) : "") + (wrong_digest ? " digest=wrong" : "") +
             (other_incarnation ? " incarnation=other" : "") + (wrong_token ? " token=1000" : "") +
             (deadline < 0 ? "" : with("deadline_ms", static_cast<uint64_t>(deadline) * tick_ms));
    case Kind::kStart: return "start" + who + with("step", step);
    case Kind::kSettle: {
      const char* name = fate == StepFate::kDone ? " ok" : fate == StepFate::kLost ? " lost" : " rolled-back";
      return "settle s" + std::to_string(session) + name + with("step", step) + with("epoch", epoch);
    }
    case Kind::kCancel: return "cancel" + who;
    case Kind::kRelease: return "release" + who;
    case Kind::kConfirm: return "confirm seq=" + std::to_string(count);
    case Kind::kAdvance: return "advance " + std::to_string(count * tick_ms);
    case Kind::kExpire: return "expire";
    case Kind::kDrain: return "drain";
    case Kind::kFinishDrain: return "finish-drain";
    case Kind::kPoison: return "poison";
  }
  return "";
}

HotKvConfig ConfigOf(TruncationClass truncation_class) {
  HotKvConfig config;
  config.sessions_max = kSequences;
  config.context_tokens = config.budget_tokens = kTokens;
  config.ttl = kTtl;
  config.window_steps = kWindow;
  config.pending_tokens_max = kPending;
  config.chunk_rows_max = kChunk;
  config.vocabulary_size = 1000;
  config.tombstones_max = kTombstones;
  config.truncation_class = truncation_class;
  config.window_tokens = kSliding;
  config.incarnation.bytes.fill(0xaa);
  return config;
}

// The pair of machines, the engine below them and the time.
class World {
 public:
  explicit World(TruncationClass truncation_class) : config_(ConfigOf(truncation_class)), kv_(config_, cells_) {
    kv_.SetWatch(TwinnedKv::Watch::kNothing);
  }

  TwinnedKv& kv() { return kv_; }
  const KvModel& model() const { return kv_.model(); }
  const Cells& cells() const { return cells_; }
  // Steps that were admitted and have had no answer yet.
  int64_t unanswered() const { return unanswered_; }
  void Make(const Call& call);
  // All that matters for what can follow, times as ages.
  std::string Key() const;

 private:
  Step StepOf(const Call& call) const;
  void Settle(const Call& call);
  std::string KeyOf(const KvModel::Session& session) const;
  int64_t Age(Time time, int64_t ticks_max) const { return std::min<int64_t>((now_ - time) / kTick, ticks_max); }

  HotKvConfig config_;
  Cells cells_;
  TwinnedKv kv_;
  Time now_{std::chrono::hours(1)};
  int64_t unanswered_ = 0;
};

SessionKey KeyOf(const Call& call) {
  SessionKey key;
  key.session.bytes.fill(call.session);
  key.epoch = Epoch(call.epoch);
  return key;
}

Step World::StepOf(const Call& call) const {
  Step step;
  step.key = kv::KeyOf(call);
  step.incarnation = config_.incarnation;
  if (call.other_incarnation) step.incarnation.bytes.fill(0xbb);
  step.seq = StepSeq(call.step);
  step.kind = call.decode ? StepKind::kDecode : StepKind::kPrefill;
  step.start = PastLen(call.start);
  step.rows = RowsWanted::kLast;
  step.ack = StepSeq(call.ack);
  step.prefix_digest = DigestAt(call.start);
  if (call.wrong_digest) step.prefix_digest.bytes[0] ^= 1;
  for (uint32_t i = 0; i < call.tokens; ++i) step.tokens.push_back(TokenAt(call.start + i, call.content));
  if (call.wrong_token) step.tokens.back() = 1000;
  if (call.deadline >= 0) step.deadline = now_ + call.deadline * kTick;
  return step;
}

void World::Make(const Call& call) {
  const SessionKey key = kv::KeyOf(call);
  switch (call.kind) {
    case Call::Kind::kOpen: kv_.Open({.key = key, .model_root = {}, .range = {}, .reserve_tokens = call.reserve, .cache_salt = ""}, now_); break;
    case Call::Kind::kStep: unanswered_ += std::holds_alternative<StepAdmitted>(kv_.Admit(StepOf(call), nullptr, now_)); break;
    case Call::Kind::kStart: {
      const KvModel::Session& session = *model().Find(key);
      const Cells::Sequence& cells = cells_.At(session.sequence);
      EXPECT_TRUE(!cells.broken && cells.held == session.log.size()) << "a sequence is used that does not hold its session's tokens";
      kv_.Start({key, session.queue[0].seq, session.queue[0].serial}, now_);
      break;
    }
    case Call::Kind::kSettle: Settle(call); break;
    case Call::Kind::kCancel: unanswered_ -= static_cast<int64_t>(kv_.Cancel(key).size()); break;
    case Call::Kind::kRelease: unanswered_ -= static_cast<int64_t>(kv_.Release(key, now_).dropped.size()); break;
    case Call::Kind::kConfirm:
      cells_.At(SequenceId(call.count)) = {};
      kv_.ConfirmRemoved(SequenceId(call.count));
      break;
    case Call::Kind::kAdvance: now_ += call.count * kTick; break;
    case Call::Kind::kExpire: kv_.Expire(now_); break;
    case Call::Kind::kDrain: kv_.BeginDrain(); break;
    case Call::Kind::kFinishDrain: kv_.FinishDrain(now_); break;
    case Call::Kind::kPoison: kv_.Poison(); break;
  }
  if (!model().dropped().empty()) unanswered_ -= static_cast<int64_t>(kv_.TakeDropped().size());
}

void World::Settle(const Call& call) {
  const SessionKey key = kv::KeyOf(call);
  const KvModel::Session* session = model().Find(key);
  for (const KvModel::Closing& closing : model().closing()) {
    if (call.gone && closing.session.key == key) session = &closing.session;
  }
  const KvModel::Queued step = session->queue[0];
  cells_.Run(session->sequence, step.content, call.fate);
  auto result = std::make_shared<StepResult>();
  result->sampled.push_back({.token = static_cast<Token>(step.serial), .logprob = {}, .top = {}});
  unanswered_ -= 1 + static_cast<int64_t>(kv_.Settle({key, step.seq, step.serial}, call.fate, std::move(result), "told to", now_).dropped.size());
}

std::string World::KeyOf(const KvModel::Session& session) const {
  std::string key;
  auto add = [&](uint64_t value) { key.push_back(static_cast<char>(value)); };
  auto add_content = [&](const KvModel::Content& content) {
    add(content.start.value), add(content.tokens.size()), add(content.kind == StepKind::kDecode);
  };
  add(session.key.session.bytes[0]), add(session.key.epoch.value), add(static_cast<uint64_t>(session.sequence.value)), add(session.reserved);
  add(session.log.size()), add(session.last.value), add(session.acked.value), add(static_cast<uint64_t>(Age(session.stamp, kTtl / kTick)));
  for (const KvModel::Kept& kept : session.kept) add(kept.seq.value), add_content(kept.content);
  add(0xff);
  for (const KvModel::Queued& queued : session.queue) {
    add_content(queued.content), add(queued.executing);
    add(queued.deadline ? static_cast<uint64_t>(std::max<int64_t>((*queued.deadline - now_) / kTick, 0)) : 0xfe);
  }
  add(0xff);
  return key;
}

std::string World::Key() const {
  std::string key = Name(model().state());
  bool second_older = false;
  for (const KvModel::Session& session : model().live()) key += KeyOf(session);
  if (model().live().size() == 2) second_older = model().live()[1].stamp < model().live()[0].stamp;
  key += second_older ? "|<" : "|";
  for (const KvModel::Closing& gone : model().closing()) key += KeyOf(gone.session) + static_cast<char>(gone.end);
  for (int32_t i = 0; i < static_cast<int32_t>(kSequences); ++i) {
    const Cells::Sequence& cells = cells_.At(SequenceId(i));
    for (uint32_t value : {cells.held, cells.intact, uint32_t{cells.broken}, uint32_t{model().removing(SequenceId(i))}}) {
      key.push_back(static_cast<char>(value));
    }
  }
  for (const KvModel::Tombstone& tombstone : model().tombstones()) {
    for (uint64_t value : {uint64_t{tombstone.session.bytes[0]}, tombstone.fence.value, static_cast<uint64_t>(tombstone.end), tombstone.last.value,
                           static_cast<uint64_t>(Age(tombstone.since, kTicksRemembered))}) {
      key.push_back(static_cast<char>(value));
    }
  }
  return key;
}

// --- What can be called in a state ------------------------------------------------------------------------------------------------------------

struct Menu {
  std::vector<Call> acts;    // may change something
  std::vector<Call> probes;  // must not
};

void AddSteps(const KvModel::Session& session, Menu& menu) {
  Call step;
  step.kind = Call::Kind::kStep;
  step.session = session.key.session.bytes[0];
  step.epoch = static_cast<uint8_t>(session.key.epoch.value);
  const uint8_t projected = static_cast<uint8_t>(KvModel::Projected(session).size()), last = static_cast<uint8_t>(session.last.value);
  step.step = static_cast<uint8_t>(session.next().value);
  step.start = projected;
  auto with = [&](auto change) {
    Call changed = step;
    change(changed);
    return changed;
  };
  auto decode = [&](Call& call) { call.decode = true, call.tokens = 1; };
  step.tokens = kChunk, step.ack = last;
  menu.acts.push_back(step);
  menu.acts.push_back(with([&](Call& call) { decode(call), call.ack = 0, call.deadline = 1; }));
  if (projected > 0) menu.acts.push_back(with([&](Call& call) { call.start = 0; }));
  if (projected > 1) menu.acts.push_back(with([&](Call& call) { call.start = 1, call.tokens = 1; }));

  step.tokens = 1;
  auto probe = [&](auto change) { menu.probes.push_back(with(change)); };
  probe([&](Call& call) { call.start++; });
  if (projected > 0) probe([&](Call& call) { decode(call), call.start--; });
  probe([&](Call& call) { call.wrong_digest = true; });
  probe([&](Call& call) { call.other_incarnation = true; });
  probe([&](Call& call) { call.wrong_token = true; });
  probe([&](Call& call) { call.tokens = 0; });
  probe([&](Call& call) { call.tokens = kChunk + 1; });
  probe([&](Call& call) { call.decode = true, call.tokens = 2; });
  probe([&](Call& call) { call.ack = static_cast<uint8_t>(last + 1); });
  probe([&](Call& call) { call.deadline = 0; });
  probe([&](Call& call) { call.step++; });
  probe([&](Call& call) { call.step = 0; });
  // Every number that was used: as it was, as it was not, and those that are no longer known.
  auto again = [&](StepSeq seq, const KvModel::Content& content) {
    const Call same = with([&](Call& call) {
      call.step = static_cast<uint8_t>(seq.value), call.start = static_cast<uint8_t>(content.start.value);
      call.tokens = static_cast<uint8_t>(content.tokens.size()), call.decode = content.kind == StepKind::kDecode;
    });
    menu.probes.push_back(same);
    menu.probes.push_back(same);
    menu.probes.back().content = 1;
  };
  for (const KvModel::Kept& kept : session.kept) again(kept.seq, kept.content);
  for (const KvModel::Queued& queued : session.queue) again(queued.seq, queued.content);
  for (uint8_t seq = 1; seq <= session.acked.value; ++seq) probe([&](Call& call) { call.step = seq; });
}

Menu MenuOf(const KvModel& model) {
  Menu menu;
  std::array<uint64_t, 3> fence = {0, 0, 0};
  std::array<bool, 3> live = {};
  for (const KvModel::Tombstone& tombstone : model.tombstones()) fence[tombstone.session.bytes[0]] = tombstone.fence.value;
  for (const KvModel::Session& session : model.live()) {
    fence[session.key.session.bytes[0]] = session.key.epoch.value;
    live[session.key.session.bytes[0]] = true;
    AddSteps(session, menu);
    if (!session.queue.empty() && !session.executing() && !model.closing(session.sequence) && !model.removing(session.sequence)) {
      menu.acts.push_back({.kind = Call::Kind::kStart, .session = session.key.session.bytes[0],
                           .epoch = static_cast<uint8_t>(session.key.epoch.value), .step = static_cast<uint8_t>(session.queue[0].seq.value)});
    }
  }
  auto settle = [&](const KvModel::Session& session, bool gone) {
    if (!session.executing()) return;
    for (const StepFate fate : {StepFate::kDone, StepFate::kRolledBack, StepFate::kLost}) {
      menu.acts.push_back({.kind = Call::Kind::kSettle, .session = session.key.session.bytes[0],
                           .epoch = static_cast<uint8_t>(session.key.epoch.value), .step = static_cast<uint8_t>(session.queue[0].seq.value),
                           .fate = fate, .gone = gone});
    }
  };
  for (const KvModel::Session& session : model.live()) settle(session, false);
  for (const KvModel::Closing& closing : model.closing()) settle(closing.session, true);

  const bool first_known = fence[1] > 0 || !model.closing().empty();
  for (uint8_t s = 1; s <= (first_known ? 2 : 1); ++s) {
    const uint8_t at = static_cast<uint8_t>(std::max<uint64_t>(fence[s], 1));
    auto of = [&](Call::Kind kind, int epoch, uint8_t reserve = 0) {
      return Call{.kind = kind, .session = s, .epoch = static_cast<uint8_t>(epoch), .reserve = reserve};
    };
    for (uint8_t reserve : {uint8_t{2}, uint8_t{kTokens}}) {
      menu.acts.push_back(of(Call::Kind::kOpen, at, reserve));
      if (fence[s] > 0 && at < kEpochs) menu.acts.push_back(of(Call::Kind::kOpen, at + 1, reserve));
    }
    menu.acts.push_back(of(Call::Kind::kCancel, at));
    menu.acts.push_back(of(Call::Kind::kRelease, at));
    menu.probes.push_back(of(Call::Kind::kOpen, at + 1, kTokens + 1));
    for (int epoch = at - 1; epoch <= at + 1; ++epoch) {
      if (epoch != at) menu.probes.push_back(of(Call::Kind::kCancel, epoch));
      Call step = of(Call::Kind::kStep, epoch);
      step.step = step.tokens = 1;
      // A live session may take it.
      if (epoch != at || !live[s]) menu.probes.push_back(step);
    }
    menu.probes.push_back(of(Call::Kind::kOpen, at - 1, 2));
    menu.probes.push_back(of(Call::Kind::kRelease, at - 1));
  }
  for (uint8_t i = 0; i < kSequences; ++i) {
    if (model.removing(SequenceId(i))) menu.acts.push_back({.kind = Call::Kind::kConfirm, .count = i});
  }
  menu.acts.push_back({.kind = Call::Kind::kAdvance, .count = 1});
  for (Call::Kind kind : {Call::Kind::kExpire, Call::Kind::kDrain, Call::Kind::kFinishDrain, Call::Kind::kPoison}) menu.acts.push_back({.kind = kind});
  return menu;
}

// --- The invariants of section 6 that speak of a change, or of the engine -----------------------------------------------------------------------

bool SameSession(const KvModel::Session& a, const KvModel::Session& b) {
  auto figures = [](const KvModel::Session& s) {
    return std::tuple(s.key, s.sequence, s.reserved, s.log, s.last, s.acked, s.stamp, s.kept.size(), s.queue.size(), s.executing());
  };
  return figures(a) == figures(b);
}

Epoch FenceOf(const KvModel& model, const SessionId& id) {
  for (const KvModel::Session& session : model.live()) {
    if (session.key.session == id) return session.key.epoch;
  }
  for (const KvModel::Tombstone& tombstone : model.tombstones()) {
    if (tombstone.session == id) return tombstone.fence;
  }
  return Epoch(0);
}

// Empty when the change is one that the design allows.
std::string Audit(const KvModel& before, const Call& call, const World& world) {
  const KvModel& after = world.model();
  const SessionId asking = KeyOf(call).session;
  const bool of_session = call.kind <= Call::Kind::kRelease;
  int64_t queued = 0;
  uint32_t used = 0;
  for (const KvModel::Closing& gone : after.closing()) queued += static_cast<int64_t>(gone.session.queue.size());
  for (const KvModel::Session& session : after.live()) {
    queued += static_cast<int64_t>(session.queue.size());
    used |= 1u << session.sequence.value;
    const bool settled = !session.executing() && !after.closing(session.sequence) && !after.removing(session.sequence);
    const Cells::Sequence& cells = world.cells().At(session.sequence);
    if (settled && (cells.broken || cells.held != session.log.size())) return "5: the engine does not hold the past length";
    if (session.log.size() > session.reserved) return "8: more tokens than reserved";
    if (session.kept.size() + session.queue.size() > kWindow) return "21: more steps than the window";
    const KvModel::Session* was = before.Find(session.key);
    if (!was) continue;
    const bool commits = call.kind == Call::Kind::kSettle && !call.gone && session.key.session == asking;
    if (!commits && session.log != was->log) return "6: tokens moved without a settled step";
    if (session.last != was->last && !(commits && call.fate == StepFate::kDone && session.last == was->last.Next())) return "11: a number was skipped";
    if (session.acked < was->acked) return "12: credit fell";
    if (of_session && session.key.session != asking && !SameSession(session, *was)) return "17: another session changed";
    if (commits && call.fate == StepFate::kRolledBack && session.log.size() != was->queue[0].content.start.value) return "2: not the start of the step";
  }
  if (after.live().size() == 2 && after.live()[0].sequence == after.live()[1].sequence) return "15: one sequence for two";
  if (after.reserved() > kTokens) return "15: more reserved than there is";
  for (const KvModel::Session& was : before.live()) {
    const Epoch fence = FenceOf(after, was.key.session);
    if (fence.value > 0 && fence < was.key.epoch) return "13: the fence fell";
    const bool left = !after.Find(was.key);
    if (left && call.kind == Call::Kind::kOpen && was.key.session != asking && (!was.queue.empty() || before.closing(was.sequence))) {
      return "19: a busy session was a victim";
    }
    if (left && of_session && call.kind != Call::Kind::kOpen && was.key.session != asking) return "17: another session ended";
  }
  if (after.tombstones().size() > kTombstones) return "21: too many tombstones";
  if (queued != world.unanswered()) return "20: an admitted step had no answer";
  return "";
}

// --- The walk --------------------------------------------------------------------------------------------------------------------------------

class Walk {
 public:
  explicit Walk(TruncationClass truncation_class) : class_(truncation_class) {
    nodes_.push_back({0, {}});
    current_ = this;
    std::signal(SIGABRT, [](int) {
      std::cerr << current_->Story() << std::flush;
      std::signal(SIGABRT, SIG_DFL);
      std::abort();
    });
  }
  ~Walk() { std::signal(SIGABRT, SIG_DFL); }

  // False at the first problem, which is then told.
  bool Run(uint32_t depth);

 private:
  struct Node {
    uint32_t parent;
    Call call;
  };

  bool Expand(uint32_t node);
  static uint64_t HashOf(const World& world) {
    const std::string key = world.Key();
    return XXH3_64bits(key.data(), key.size());
  }
  std::unique_ptr<World> At(uint32_t node);
  std::vector<Call> PathTo(uint32_t node) const;
  bool Good(const std::string& problem);
  std::string Story() const;

  static inline Walk* current_ = nullptr;
  TruncationClass class_;
  std::vector<Node> nodes_;  // the states, in the order found
  std::unordered_set<uint64_t> seen_;
  uint64_t calls_ = 0;
  uint32_t node_ = 0;  // what is tried just now
  Call call_;
};

std::vector<Call> Walk::PathTo(uint32_t node) const {
  std::vector<Call> path;
  for (; node != 0; node = nodes_[node].parent) path.push_back(nodes_[node].call);
  std::ranges::reverse(path);
  return path;
}

std::unique_ptr<World> Walk::At(uint32_t node) {
  auto world = std::make_unique<World>(class_);
  for (const Call& call : PathTo(node)) world->Make(call);
  return world;
}

bool Walk::Run(uint32_t depth) {
  seen_.insert(HashOf(*At(0)));
  size_t begin = 0;
  for (uint32_t level = 1; level <= depth; ++level) {
    const size_t end = nodes_.size();
    for (; begin < end; ++begin) {
      if (!Expand(static_cast<uint32_t>(begin))) return false;
    }
    std::cout << Name(class_) << " depth " << level << ": " << nodes_.size() << " states, " << calls_ << " calls checked\n";
  }
  return true;
}

bool Walk::Expand(uint32_t node) {
  node_ = node;
  std::unique_ptr<World> world = At(node);
  const Menu menu = MenuOf(world->model());
  world->kv().CompareState(TwinnedKv::State::kAny);
  world->kv().SetWatch(TwinnedKv::Watch::kAnswers);
  for (const Call& probe : menu.probes) {
    call_ = probe;
    world->Make(probe);
    if (!Good(world->kv().problem())) return false;
  }
  world->kv().CompareState(TwinnedKv::State::kUnchanged);
  if (!Good(world->kv().problem())) return false;
  calls_ += menu.probes.size() + menu.acts.size();
  const KvModel before = world->model();
  const std::string state = world->kv().Snapshot();
  bool fresh = true;
  for (const Call& act : menu.acts) {
    call_ = act;
    if (!fresh) {
      world = At(node);
      world->kv().SetWatch(TwinnedKv::Watch::kAnswers);
    }
    world->Make(act);
    world->kv().CompareState(TwinnedKv::State::kAny);
    if (!Good(world->kv().problem()) || !Good(Audit(before, act, *world))) return false;
    fresh = act.kind != Call::Kind::kAdvance && world->kv().Snapshot() == state;
    if (!fresh && seen_.insert(HashOf(*world)).second) nodes_.push_back({node, act});
  }
  return true;
}

bool Walk::Good(const std::string& problem) {
  if (problem.empty()) return true;
  ADD_FAILURE() << problem << "\nafter\n" << Story();
  return false;
}

// The way to the problem, ready for tests/golden/kv.
std::string Walk::Story() const {
  std::vector<Call> path = PathTo(node_);
  path.push_back(call_);
  std::string story = "config sessions=2 context=4 budget=4 ttl_ms=300000 window=2 chunk=2 pending=3 tombstones=2 class=" + std::string(Name(class_)) +
                      " sliding=1 slack=1 confirm=late\n";
  for (const Call& call : path) story += call.Text() + "\n";
  return story;
}

class KvSmallScopeTest : public testing::TestWithParam<TruncationClass> {};

TEST_P(KvSmallScopeTest, EveryStateHoldsTheInvariants) {
  const char* depth = std::getenv("MESHNET_KV_DEPTH");
  Walk walk(GetParam());
  EXPECT_TRUE(walk.Run(depth ? static_cast<uint32_t>(std::atoi(depth)) : 8));
}

INSTANTIATE_TEST_SUITE_P(Classes, KvSmallScopeTest, testing::Values(TruncationClass::kFull, TruncationClass::kWindow, TruncationClass::kWhole),
                         [](const auto& suite) { return std::string(Name(suite.param)); });

}  // namespace
}  // namespace meshnet::kv
