#include "client.h"

#include <algorithm>
#include <utility>

#include "engine/fake_model.h"

namespace meshnet::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// After the healing: until then a route may still be down, since processes have to load.
constexpr Duration kRepairGrace = seconds(60);
constexpr uint32_t kTakenAnswersMax = 3;
constexpr uint32_t kBackOffDoublings = 6;

uint32_t ContextOf(const Swarm& swarm) {
  uint32_t context = swarm.workers.front().context_tokens;
  for (const WorkerShape& worker : swarm.workers) context = std::min(context, worker.context_tokens);
  return context;
}

uint8_t NextNumber(World& world) { return static_cast<uint8_t>(world.clients++); }

const char* Name(AnswerFailure::Kind kind) {
  switch (kind) {
    case AnswerFailure::Kind::kContextExceeded: return "context exceeded";
    case AnswerFailure::Kind::kCapacity: return "capacity";
    case AnswerFailure::Kind::kBadRequest: return "bad request";
    case AnswerFailure::Kind::kRouteDown: return "route down";
    case AnswerFailure::Kind::kInternal: return "internal";
  }
  return "?";
}

const char* Name(AnswerEnd end) {
  switch (end) {
    case AnswerEnd::kEndOfGeneration: return "end of generation";
    case AnswerEnd::kLength: return "length";
    case AnswerEnd::kStopped: return "stopped";
    case AnswerEnd::kCancelled: return "cancelled";
  }
  return "?";
}

}  // namespace

class Client::Listener : public AnswerSink {
 public:
  Listener(Client& client, const Question& question) : client_(client), question_(question) {}

  SinkVerdict OnToken(const SampledToken& token) override {
    const size_t index = told_++;
    client_.world_.Note({What::kToken, client_.place_, {}, {}, index, static_cast<uint64_t>(token.token)});
    ++client_.world_.tokens_told;
    if (index >= question_.expected.size()) {
      client_.Complain("token " + std::to_string(index) + " came after the answer's end");
    } else if (token.token != question_.expected[index]) {
      client_.Complain("token " + std::to_string(index) + " of the answer is " + std::to_string(token.token) + " instead of " +
                       std::to_string(question_.expected[index]));
    }
    if (cancelled_) client_.Complain("was told a token after its cancel was seen");
    return told_ == question_.stop_at ? SinkVerdict::kStop : SinkVerdict::kGoOn;
  }
  void OnPrefill(uint32_t done, uint32_t total) override {
    if (done > total || total != question_.request.prompt.size()) client_.Complain("prefill progress past the prompt");
  }
  bool Cancelled() override {
    const bool due = question_.cancel_at && client_.world_.loop.now() >= *question_.cancel_at;
    cancelled_ = cancelled_ || due || client_.gateway_.dead();
    return cancelled_;
  }

  size_t told() const { return told_; }
  bool was_cancelled() const { return cancelled_; }

 private:
  Client& client_;
  const Question& question_;
  size_t told_ = 0;
  bool cancelled_ = false;
};

Client::Client(World& world, Gateway& gateway, Gateway::Door door, ClientKind kind)
    : world_(world), gateway_(gateway), door_(door), kind_(kind), place_{'c', NextNumber(world)} {
  owner_ = "owner" + std::to_string(world.random.Below(world.swarm.owners));
}

Client::Client(World& world, Gateway& gateway, Gateway::Door door, ClientKind kind, const SessionId& session)
    : Client(world, gateway, door, kind) {
  taken_ = session;
  if (kind == ClientKind::kCollides) {
    world.collided.insert(session);
    owner_ = world.salts[session];
  } else {
    owner_ = world.random.Coin() ? "owner of the taken" : owner_;
    generation_ = ++world.takeovers[session];
  }
  world.Note({What::kTakesOver, place_, {}, {session, Epoch(0)}, generation_});
}

void Client::Complain(const std::string& what) {
  world_.checker.Fail("client " + std::to_string(place_.number) + " of gateway " + std::to_string(gateway_.place().number) + ": " + what);
}

void Client::Live() {
  uint32_t answers = 0;
  while (!gateway_.dead()) {
    gateway_.time().Sleep(world_.random.Between(Duration(0), world_.swarm.habits.think_max));
    if (gateway_.dead()) break;
    const bool last = world_.healed;
    BackOff();
    const bool answered = AskOnce();
    if (answered && last) break;
    const bool visits = kind_ == ClientKind::kTakesOver || kind_ == ClientKind::kCollides;
    if (visits && (!session_ || (answered && ++answers == kTakenAnswersMax))) break;
  }
  LeaveSession();
  world_.Note({What::kLeaves, place_});
}

// Whoever was refused for want of room comes again later and later, as clients do that read Retry-After. If nobody did, many drivers on few
// sequences would evict each other's answers for ever.
void Client::BackOff() {
  if (refused_ == 0) return;
  const Duration most = seconds(1) * (1 << std::min(refused_, kBackOffDoublings));
  const Duration wait = world_.random.Between(most / 2, most);
  const Time until = world_.loop.now() + wait;
  while (world_.loop.now() < until && !gateway_.dead()) gateway_.time().Sleep(std::min<Duration>(until - world_.loop.now(), seconds(1)));
}

Client::Question Client::Draw() {
  Random& random = world_.random;
  const ClientHabits& habits = world_.swarm.habits;
  const FakeModel& model = world_.swarm.model;
  const uint32_t context = ContextOf(world_.swarm);
  Question question;
  std::vector<Token>& prompt = question.request.prompt;
  if (random.Chance(habits.continue_talk)) prompt = talk_;
  if (random.Chance(habits.repeat_others)) prompt = world_.last_talk;
  // Sometimes a client goes back in its talk before it goes on.
  if (!prompt.empty() && random.Chance(250)) prompt.resize(random.Below(static_cast<uint32_t>(prompt.size())));
  uint32_t more = random.Between(1, habits.prompt_max);
  const bool long_prompt = random.Chance(habits.past_context);
  if (!long_prompt && prompt.size() + more > context) prompt.clear();
  if (long_prompt) more = context - std::min<uint32_t>(context - 1, static_cast<uint32_t>(prompt.size())) + random.Below(3);
  for (uint32_t i = 0; i < more; ++i) prompt.push_back(static_cast<Token>(random.Below(model.vocabulary_size)));

  SamplingParams& sampling = question.request.sampling;
  sampling.seed = random.Below(4);
  sampling.temperature = random.Coin() ? 0.0f : 0.8f;
  sampling.ignore_eos = random.Chance(100);
  question.request.tokens_max = random.Chance(50) ? 0 : random.Between(1, habits.answer_max);
  const uint32_t length = static_cast<uint32_t>(prompt.size());
  question.too_long = length > context;
  if (!question.too_long) {
    // The last token that fits is sampled, but never computed.
    const uint32_t room = context + 1 - length;
    const uint32_t most = question.request.tokens_max == 0 ? room : std::min(room, question.request.tokens_max);
    question.expected = FakeAnswer(model, prompt, most, sampling);
  }
  if (random.Chance(habits.stop)) question.stop_at = random.Between(1, habits.answer_max);
  if (random.Chance(habits.cancel)) {
    const Duration most = random.Pick<Duration>({milliseconds(1), milliseconds(20), milliseconds(500), seconds(5)});
    question.cancel_at = world_.loop.now() + random.Between(Duration(0), most);
  }
  return question;
}

// True when it got its answer, as far as it wanted it.
bool Client::AskOnce() {
  const Question question = Draw();
  world_.Note({What::kAsks, place_, {}, {}, question.request.prompt.size(), question.request.tokens_max, question.request.sampling.seed});
  Listener listener(*this, question);
  const bool answered = kind_ == ClientKind::kPool ? AskPool(question, listener) : AskOwn(question, listener);
  if (!question.too_long) {
    talk_ = question.request.prompt;
    const size_t told = std::min(listener.told(), question.expected.size());
    talk_.insert(talk_.end(), question.expected.begin(), question.expected.begin() + static_cast<ptrdiff_t>(told));
    world_.last_talk = talk_;
  }
  return answered;
}

bool Client::AskPool(const Question& question, Listener& listener) {
  const Time deadline = gateway_.time().Now() + world_.random.Between(milliseconds(10), seconds(30));
  auto turn = door_.pool.Acquire(owner_, question.request.prompt, deadline, [&listener] { return listener.Cancelled(); });
  if (const auto* refusal = std::get_if<TurnRefusal>(&turn)) {
    world_.Note({What::kTurnRefused, place_, {}, {}, static_cast<uint64_t>(*refusal)});
    world_.checker.Mark(std::string("turn refused ") + meshnet::Name(*refusal));
    gateway_.time().Sleep(world_.random.Between(milliseconds(50), seconds(2)));
    return false;
  }
  auto& lease = std::get<SessionPool::Lease>(turn);
  world_.checker.OwnsSession(lease.session().id(), owner_);
  if (world_.random.Chance(50)) lease.Discard();
  generation_ = 0;
  return Drive(question, listener, lease.session());
}

bool Client::AskOwn(const Question& question, Listener& listener) {
  if (!session_) {
    DriverOptions options = world_.swarm.driver;
    options.name = [this] { return NameSession(); };
    session_ = std::make_unique<DrivenSession>(door_.route, gateway_.time(), options, owner_);
  }
  const bool answered = Drive(question, listener, *session_);
  if (session_->ended() || world_.random.Chance(world_.swarm.habits.leave)) LeaveSession();
  return answered;
}

bool Client::Drive(const Question& question, Listener& listener, DrivenSession& session) {
  // Unless another driver may be in the middle of an answer.
  if (!world_.takeovers.contains(session.id())) world_.checker.ForgetEngineFailures(session.id());
  return Judge(question, listener, session, session.Answer(question.request, listener));
}

SessionKey Client::NameSession() {
  if (kind_ == ClientKind::kTakesOver) {
    // Far above what its driver can have come to, as if another gateway had been told so.
    return {taken_, Epoch(uint64_t{100000} * generation_)};
  }
  if (kind_ == ClientKind::kCollides) return {taken_, Epoch(std::max<uint64_t>(world_.epochs[taken_].value, 1) - 1)};
  const SessionKey name = gateway_.NameSession();
  world_.salts[name.session] = owner_;
  return name;
}

// Politely, or without a word: then the stages find out by TTL.
void Client::LeaveSession() {
  if (!session_) return;
  if (world_.random.Coin()) session_->Release(seconds(2));
  session_.reset();
}

bool Client::Judge(const Question& question, const Listener& listener, DrivenSession& session,
                   std::variant<AnswerReport, AnswerFailure> result) {
  if (const auto* report = std::get_if<AnswerReport>(&result)) {
    world_.Note({What::kAnswered, place_, {}, {session.id(), session.epoch()}, static_cast<uint64_t>(report->end), listener.told(), report->cached_tokens});
    world_.checker.Mark(std::string("answered ") + Name(report->end));
    refused_ = 0;
    if (report->replays > 0) world_.checker.Mark("answered after replays");
    if (report->cached_tokens > 0) world_.checker.Mark("answered from cache");
    return JudgeReport(question, listener, *report);
  }
  const AnswerFailure& failure = std::get<AnswerFailure>(result);
  if (failure.kind == AnswerFailure::Kind::kCapacity) ++refused_;
  world_.Note({What::kFailed, place_, {}, {session.id(), session.epoch()}, static_cast<uint64_t>(failure.kind), listener.told()});
  std::string name = session.ended() ? "taken over" : Name(failure.kind);
  if (failure.kind == AnswerFailure::Kind::kInternal && !session.ended()) {
    const bool collided = world_.collided.contains(session.id());
    name += collided ? " (two drivers of one epoch)" : world_.swarm.link.order_kept ? " (engine)" : " (order not kept)";
  }
  world_.checker.Mark("failed " + name);
  JudgeFailure(question, listener, session, failure);
  // In a healed world a prompt that is too long has had its answer too.
  return failure.kind == AnswerFailure::Kind::kContextExceeded || session.ended();
}

bool Client::JudgeReport(const Question& question, const Listener& listener, const AnswerReport& report) {
  const size_t told = listener.told();
  const auto wrong = [&](const std::string& what) {
    Complain("an answer of " + std::to_string(told) + " of " + std::to_string(question.expected.size()) + " tokens ended as " + Name(report.end) + what);
    return false;
  };
  if (report.generated_tokens != told) return wrong(", but reports " + std::to_string(report.generated_tokens));
  if (report.prompt_tokens != question.request.prompt.size() || report.cached_tokens > report.prompt_tokens) return wrong(" with a wrong count of the prompt");
  switch (report.end) {
    case AnswerEnd::kCancelled:
      return listener.was_cancelled() || wrong(" without a cancel");
    case AnswerEnd::kStopped:
      return told == question.stop_at || wrong(" where nobody stopped it");
    case AnswerEnd::kLength:
      if (question.too_long || told != question.expected.size()) return wrong(" too early");
      break;
    case AnswerEnd::kEndOfGeneration: {
      const std::vector<Token>& ends = world_.swarm.model.end_of_generation_tokens;
      if (told == 0 || told != question.expected.size() || !std::ranges::count(ends, question.expected.back())) return wrong(" where the model does not end");
      break;
    }
  }
  return true;
}

void Client::JudgeFailure(const Question& question, const Listener& listener, DrivenSession& session, const AnswerFailure& failure) {
  const bool settled = world_.healed && world_.loop.now() > world_.healed_at + kRepairGrace;
  const auto wrong = [&](const std::string& why) {
    Complain("after " + std::to_string(listener.told()) + " tokens an answer failed (" + Name(failure.kind) + ") " + why + ": " + failure.message);
  };
  // Two drivers of one session and epoch see each other's steps, and think what they like of them.
  if (world_.collided.contains(session.id()) && failure.kind != AnswerFailure::Kind::kContextExceeded) return;
  switch (failure.kind) {
    case AnswerFailure::Kind::kContextExceeded:
      if (!question.too_long) wrong("although the prompt fits");
      break;
    case AnswerFailure::Kind::kCapacity:
      break;
    case AnswerFailure::Kind::kRouteDown:
      if (settled && !gateway_.dead()) wrong("although nothing is wrong any more");
      break;
    case AnswerFailure::Kind::kBadRequest:
      wrong("although nothing is wrong with it");
      break;
    case AnswerFailure::Kind::kInternal:
      if (!session.ended()) {
        // Steps that overtake each other on their way are a link's fault, which the driver is not made for.
        if (settled) wrong("although nothing is wrong any more");
        if (world_.swarm.link.order_kept && !world_.checker.EngineGaveUp(session.id())) wrong("although the engine did not fail on one step again and again");
      } else if (world_.takeovers[session.id()] <= generation_) {
        wrong("as if it had been taken over");
      }
      break;
  }
}

}  // namespace meshnet::sim
