#include "kv_transcript.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <sstream>
#include <utility>

#include "protocol/prefix_digest.h"

namespace meshnet::kv {
namespace {

SamplingParams Greedy() {
  SamplingParams sampling;
  sampling.temperature = 0;
  return sampling;
}

std::string Number(uint64_t value) { return std::to_string(value); }

}  // namespace

// "open s1 epoch=4 reserve=64": a verb, plain words, and key=value pairs.
struct KvTranscript::Words {
  std::string verb;
  std::vector<std::string> plain;
  std::map<std::string, std::string> values;

  explicit Words(const std::string& command) {
    std::istringstream stream(command);
    stream >> verb;
    for (std::string word; stream >> word;) {
      const size_t equals = word.find('=');
      if (equals == std::string::npos) {
        plain.push_back(word);
      } else {
        values[word.substr(0, equals)] = word.substr(equals + 1);
      }
    }
  }

  std::string name() const { return plain.empty() ? "" : plain[0]; }
  bool has(const std::string& key) const { return values.contains(key); }
  std::string text(const std::string& key, const std::string& otherwise = "") const { return has(key) ? values.at(key) : otherwise; }
  int64_t number(const std::string& key, int64_t otherwise = 0) const {
    int64_t value = otherwise;
    if (has(key)) std::from_chars(values.at(key).data(), values.at(key).data() + values.at(key).size(), value);
    return value;
  }
  SessionKey key() const {
    SessionId id;
    id.bytes.fill(static_cast<uint8_t>(name().size() > 1 ? std::atoi(name().c_str() + 1) : 0));
    return {id, Epoch(static_cast<uint64_t>(number("epoch", 1)))};
  }
};

class KvTranscript::Probe : public SequenceProbe {
 public:
  explicit Probe(const FakeEngine& engine) : engine_(engine) {}
  PastLen IntactFrom(SequenceId sequence) const override { return engine_.intact_from(sequence); }

 private:
  const FakeEngine& engine_;
};

KvTranscript::KvTranscript() {
  config_.sessions_max = 2;
  config_.context_tokens = 64;
  config_.budget_tokens = 128;
  config_.ttl = std::chrono::seconds(60);
  config_.pending_tokens_max = 64;
  config_.chunk_rows_max = 32;
  config_.vocabulary_size = 1000;
  config_.tombstones_max = 8;
  config_.incarnation.bytes.fill(0xaa);
}

KvTranscript::~KvTranscript() = default;

std::string KvTranscript::Execute(const std::string& command) {
  command_ = command;
  const Words words(command);
  if (words.verb == "config" && !kv_) return Configure(words);
  if (!kv_) Configure(Words("config"));
  const std::string answer = Answer(words);
  if (!kv_->problem().empty()) Problem(kv_->problem());
  Watch();
  return answer;
}

std::string KvTranscript::Answer(const Words& words) {
  if (words.verb == "open") return Open(words);
  if (words.verb == "step") return DoStep(words);
  if (words.verb == "start") return Start(words);
  if (words.verb == "settle") return Settle(words);
  if (words.verb == "release") return Release(words);
  if (words.verb == "cancel") return Cancel(words);
  return Show(words);
}

std::string KvTranscript::Configure(const Words& words) {
  config_.sessions_max = static_cast<uint32_t>(words.number("sessions", config_.sessions_max));
  config_.context_tokens = static_cast<uint32_t>(words.number("context", config_.context_tokens));
  config_.budget_tokens = static_cast<uint32_t>(words.number("budget", config_.budget_tokens));
  config_.ttl = std::chrono::milliseconds(words.number("ttl_ms", std::chrono::duration_cast<std::chrono::milliseconds>(config_.ttl).count()));
  config_.window_steps = static_cast<uint32_t>(words.number("window", config_.window_steps));
  config_.pending_tokens_max = static_cast<uint32_t>(words.number("pending", config_.pending_tokens_max));
  config_.chunk_rows_max = static_cast<uint32_t>(words.number("chunk", config_.chunk_rows_max));
  config_.tombstones_max = static_cast<uint32_t>(words.number("tombstones", config_.tombstones_max));
  const std::string truncation = words.text("class", "full");
  for (TruncationClass each : {TruncationClass::kFull, TruncationClass::kWindow, TruncationClass::kWhole}) {
    if (truncation == Name(each)) config_.truncation_class = each;
  }
  config_.window_tokens = static_cast<uint32_t>(words.number("sliding", 4));

  engine_options_.model.layer_count = 2;
  engine_options_.model.width = 2;
  engine_options_.model.vocabulary_size = config_.vocabulary_size;
  engine_options_.range = {0, 2};
  engine_options_.sessions_max = config_.sessions_max;
  engine_options_.context_tokens = config_.context_tokens;
  engine_options_.budget_tokens = config_.budget_tokens;
  engine_options_.chunk_rows_max = config_.chunk_rows_max;
  engine_options_.truncation_class = config_.truncation_class;
  engine_options_.window_tokens = config_.window_tokens;
  engine_options_.window_slack_tokens = static_cast<uint32_t>(words.number("slack", 0));
  engine_ = std::make_unique<FakeEngine>(engine_options_);
  probe_ = std::make_unique<Probe>(*engine_);
  late_ = words.text("confirm") == "late";
  kv_ = std::make_unique<TwinnedKv>(config_, *probe_);
  return "ready";
}

std::string KvTranscript::Open(const Words& words) {
  OpenRequest request;
  request.key = words.key();
  request.reserve_tokens = static_cast<uint32_t>(words.number("reserve"));
  request.cache_salt = words.text("salt");
  const bool query = kv_->model().Find(request.key) != nullptr;
  OpenDecision decision = kv_->Open(request, now_);
  if (const Refusal* refusal = std::get_if<Refusal>(&decision)) return Text(*refusal);
  const OpenAccepted& accepted = std::get<OpenAccepted>(decision);
  if (!query) {
    mirrors_[words.name()] = {request.key.epoch, request.cache_salt, {}};
    for (Pending& pending : pending_) pending.orphan |= pending.name == words.name();
  }
  std::string text = "accepted";
  for (const SessionLine& line : Sessions()) {
    if (!line.closing && line.name == words.name()) text += " seq=" + std::to_string(line.sequence.value);
  }
  text += " past=" + Number(accepted.reply.past_len.value) + " next_step=" + Number(accepted.reply.next_step.value) +
          " credit=" + Number(accepted.reply.credit.step_seq_max.value);
  if (accepted.reply.reserved_tokens != request.reserve_tokens) text += " reserved=" + Number(accepted.reply.reserved_tokens);
  if (accepted.reply.superseded) text += " superseded=" + Number(accepted.reply.superseded->value);
  if (accepted.reply.digest != DigestOfPrefix(mirrors_[words.name()].salt, mirrors_[words.name()].committed)) {
    Problem("the digest is not the one of the committed tokens");
  }
  return text + Perform(accepted.effects);
}

Step KvTranscript::MakeStep(const Words& words) const {
  Step step;
  step.key = words.key();
  step.incarnation = config_.incarnation;
  if (words.text("incarnation") == "other") step.incarnation.bytes.fill(0xbb);
  step.seq = StepSeq(static_cast<uint64_t>(words.number("step")));
  step.kind = words.text("kind") == "decode" ? StepKind::kDecode : StepKind::kPrefill;
  step.start = PastLen(static_cast<uint32_t>(words.number("start")));
  step.ack = StepSeq(static_cast<uint64_t>(words.number("ack")));
  step.rows = RowsWanted::kLast;
  if (words.has("deadline_ms")) step.deadline = now_ + std::chrono::milliseconds(words.number("deadline_ms"));

  const int64_t content = words.number("content");
  auto token_at = [&](uint64_t position) { return static_cast<Token>((position * 7 + static_cast<uint64_t>(content) * 101 + 3) % 1000); };
  for (int64_t i = 0; i < words.number("tokens"); ++i) step.tokens.push_back(token_at(step.start.value + static_cast<uint64_t>(i)));
  if (words.has("token") && !step.tokens.empty()) step.tokens.back() = static_cast<Token>(words.number("token"));

  std::vector<Token> line = Line(words.name(), step.key.epoch);
  while (line.size() < step.start.value) line.push_back(token_at(line.size()));
  const auto mirror = mirrors_.find(words.name());
  const std::string salt = mirror == mirrors_.end() ? "" : mirror->second.salt;
  step.prefix_digest = DigestOfPrefix(salt, std::span(line).first(step.start.value));
  if (words.text("digest") == "wrong") step.prefix_digest.bytes[0] ^= 1;
  if (words.has("frame")) {
    const float value = static_cast<float>(words.number("frame"));
    step.input = HiddenState(static_cast<uint32_t>(step.tokens.size()), 1, std::vector<float>(step.tokens.size(), value));
  }
  return step;
}

// What the session will hold once its queued steps are committed, told from the answers alone.
std::vector<Token> KvTranscript::Line(const std::string& name, Epoch epoch) const {
  const auto mirror = mirrors_.find(name);
  if (mirror == mirrors_.end() || mirror->second.epoch != epoch) return {};
  std::vector<Token> line = mirror->second.committed;
  for (const Pending& pending : pending_) {
    if (pending.name != name || pending.ticket.key.epoch != epoch || pending.orphan) continue;
    line.resize(pending.start.value);
    line.insert(line.end(), pending.tokens.begin(), pending.tokens.end());
  }
  return line;
}

std::string KvTranscript::DoStep(const Words& words) {
  const Step step = MakeStep(words);
  std::optional<Refusal> fields;
  for (Detail detail : {Detail::kShape, Detail::kEncoding, Detail::kNonFinite}) {
    if (words.text("fields") != Name(detail)) continue;
    fields.emplace();
    fields->detail = detail;
    fields->message = "found by the caller";
  }
  StepDecision decision = kv_->Admit(step, [&] { return fields; }, now_);
  if (const Refusal* refusal = std::get_if<Refusal>(&decision)) return Text(*refusal);
  if (const StepReplayed* replayed = std::get_if<StepReplayed>(&decision)) {
    if (replayed->result->seq != step.seq) Problem("the reply of another step was replayed");
    return "replayed past=" + Number(replayed->result->past_len.value);
  }
  if (std::holds_alternative<StepJoined>(decision)) return "joined";
  pending_.push_back({std::get<StepAdmitted>(decision).ticket, words.name(), step.start, step.tokens, std::nullopt, false});
  return "accepted";
}

KvTranscript::Pending* KvTranscript::FindPending(const Words& words, bool started) {
  for (Pending& pending : pending_) {
    if (pending.name == words.name() && pending.ticket.seq.value == static_cast<uint64_t>(words.number("step")) &&
        (!words.has("epoch") || pending.ticket.key.epoch == words.key().epoch) && pending.execution.has_value() == started) {
      return &pending;
    }
  }
  return nullptr;
}

// HotKv aborts on a start that breaks its rules, which a worker never does.
bool KvTranscript::startable(const Pending& pending) const {
  for (const Pending& earlier : pending_) {
    if (&earlier == &pending) break;
    if (earlier.ticket.key == pending.ticket.key && !earlier.orphan) return false;
  }
  const std::vector<SessionLine> sessions = Sessions();
  for (const SessionLine& line : sessions) {
    if (line.closing || line.name != pending.name) continue;
    if (kv_->model().removing(line.sequence)) return false;
    return std::ranges::none_of(sessions, [&](const SessionLine& other) { return other.closing && other.sequence == line.sequence; });
  }
  return true;
}

std::string KvTranscript::Begin(Pending& pending) {
  const Ticket ticket = pending.ticket;
  pending.execution = kv_->Start(ticket, now_);
  if (!pending.execution) return "nothing" + Text(kv_->TakeDropped());
  return "executing seq=" + std::to_string(pending.execution->sequence.value) + " start=" + Number(pending.execution->start.value) +
         (pending.execution->truncate ? " truncate" : "");
}

std::string KvTranscript::Start(const Words& words) {
  Pending* pending = FindPending(words, false);
  if (!pending) return "no such step is queued";
  if (!startable(*pending)) return "not its turn";
  return Begin(*pending);
}

StepFate KvTranscript::RunEngine(Pending& pending, const std::string& fate, StepResult& result, std::string& cause) {
  const Execution& execution = *pending.execution;
  const SamplingParams sampling = Greedy();
  if (fate == "rolled-back") engine_->Inject({.kind = FakeFault::Kind::kRolledBack});
  if (fate == "lost") engine_->Inject({.kind = FakeFault::Kind::kLost});
  if (fate == "truncate-fails") engine_->Inject({.kind = FakeFault::Kind::kTruncateFails});
  cause = "the truncation was not proven";
  if (execution.truncate && !engine_->Truncate(execution.sequence, execution.start)) return StepFate::kLost;
  EngineStep step{.sequence = execution.sequence, .start = execution.start, .tokens = pending.tokens, .rows = RowsWanted::kLast,
                  .sampling = &sampling};
  EngineOutcome outcome = std::move(engine_->Run(std::span(&step, 1))[0]);
  cause = outcome.cause;
  result.output = std::move(outcome.output);
  result.sampled = std::move(outcome.sampled);
  switch (outcome.fate) {
    case EngineFate::kDone: return StepFate::kDone;
    case EngineFate::kRolledBack: return StepFate::kRolledBack;
    case EngineFate::kLost: return StepFate::kLost;
  }
  return StepFate::kLost;
}

std::string KvTranscript::Settle(const Words& words) {
  Pending* pending = FindPending(words, true);
  if (!pending) {
    pending = FindPending(words, false);
    if (!pending) return "no such step is queued";
    if (!startable(*pending)) return "not its turn";
    if (std::string begun = Begin(*pending); begun.starts_with("nothing") || !kv_->problem().empty()) return begun;
  }
  auto result = std::make_shared<StepResult>();
  std::string cause;
  const StepFate fate = RunEngine(*pending, words.plain.size() > 1 ? words.plain[1] : "ok", *result, cause);
  Settled settled = kv_->Settle(pending->ticket, fate, std::move(result), cause, now_);
  const Pending done = *pending;
  Forget(done.ticket);
  if (settled.result) {
    Committed(done, *settled.result);
    return "past=" + Number(settled.result->past_len.value) + Text(settled.dropped) + Perform(settled.effects);
  }
  if (settled.refusal->reason == Reason::kExecFailed) mirrors_[done.name].committed.resize(done.start.value);
  return Text(*settled.refusal) + Text(settled.dropped) + Perform(settled.effects);
}

void KvTranscript::Committed(const Pending& pending, const StepResult& result) {
  Mirror& mirror = mirrors_[pending.name];
  mirror.committed.resize(pending.start.value);
  mirror.committed.insert(mirror.committed.end(), pending.tokens.begin(), pending.tokens.end());
  const SampledToken expected = FakeSample(engine_options_.model, FakeLastState(engine_options_.model, mirror.committed),
                                           result.past_len.value, Greedy());
  if (result.sampled.size() != 1 || result.sampled[0] != expected) Problem("the sampled token is not the one of the committed tokens");
  if (result.digest != DigestOfPrefix(mirror.salt, mirror.committed)) Problem("the result's digest is not the one of the committed tokens");
}

std::string KvTranscript::Release(const Words& words) {
  Released released = kv_->Release(words.key(), now_);
  const bool changed = kv_->changed();
  return std::string(Name(released.outcome)) + (changed ? "" : ", nothing changed") + Text(released.dropped) + Perform(released.effects);
}

std::string KvTranscript::Cancel(const Words& words) {
  const std::vector<Dropped> dropped = kv_->Cancel(words.key());
  return dropped.empty() ? "nothing queued" : "cancelled" + Text(dropped);
}

std::string KvTranscript::Show(const Words& words) {
  if (words.verb == "advance") {
    now_ += std::chrono::milliseconds(words.plain.empty() ? 0 : std::atoll(words.plain[0].c_str()));
    return "done";
  }
  if (words.verb == "expire") return "expired" + Perform(kv_->Expire(now_).effects);
  if (words.verb == "finish-drain") return "drained" + Perform(kv_->FinishDrain(now_).effects);
  if (words.verb == "confirm") return Confirm(words.has("seq") ? std::optional(SequenceId(static_cast<int32_t>(words.number("seq")))) : std::nullopt);
  if (words.verb == "drain") {
    kv_->BeginDrain();
    return "draining";
  }
  if (words.verb == "poison") {
    kv_->Poison();
    return "poisoned";
  }
  if (words.verb == "dropped") {
    const std::string text = Text(kv_->TakeDropped());
    return text.empty() ? "none" : text.substr(1);
  }
  if (words.verb == "stats") {
    const ShardStats stats = kv_->Stats(now_);
    return std::string(Name(stats.state)) + " live=" + Number(stats.sessions_live) + " busy=" + Number(stats.sessions_busy) +
           " reserved=" + Number(stats.kv_tokens_reserved) + " used=" + Number(stats.kv_tokens_used) + " free=" + Number(stats.sequences_free) +
           " queued=" + Number(stats.steps_queued) + " ttl=" + Number(stats.evictions_ttl) + " lru=" + Number(stats.evictions_lru) +
           " superseded=" + Number(stats.evictions_superseded) + " lost=" + Number(stats.sessions_lost) + " replays=" + Number(stats.replays) +
           " committed=" + Number(stats.steps_committed);
  }
  // For the tests of the tests: a command that is wrong exactly when a session is live.
  if (words.verb == "canary") {
    if (kv_->Stats(now_).sessions_live > 0) Problem("the canary found a session");
    return "sang";
  }
  return "what? " + words.verb;
}

std::string KvTranscript::Text(const Refusal& refusal) {
  std::string text = std::string("refused ") + Name(refusal.reason);
  if (refusal.detail != Detail::kNone) text += std::string(" ") + Name(refusal.detail);
  if (refusal.reason == Reason::kEpochStale) text += " current=" + Number(refusal.fence.value);
  if (refusal.nearest_past_len) text += " nearest=" + Number(refusal.nearest_past_len->value);
  if (refusal.session) text += " past=" + Number(refusal.session->past_len.value) + " next_step=" + Number(refusal.session->next_step.value);
  if (refusal.incarnation != config_.incarnation) Problem("the refusal names another worker");
  if (refusal.message.empty()) Problem("the refusal has no message");
  return text;
}

std::string KvTranscript::Text(const std::vector<Dropped>& dropped) {
  std::string text;
  for (const auto& [ticket, refusal] : dropped) {
    text += (text.empty() ? " dropped=" : ",") + Number(ticket.seq.value) + ":" + Name(refusal.reason);
    Forget(ticket);
  }
  return text;
}

std::string KvTranscript::Perform(const Effects& effects) {
  std::string text;
  for (const SequenceId sequence : effects.removals) {
    text += (text.empty() ? " removes=" : ",") + std::to_string(sequence.value);
    unconfirmed_.push_back(sequence);
  }
  if (!late_) Confirm(std::nullopt);
  return text;
}

// The engine empties what was to be removed, or one of it, and says so.
std::string KvTranscript::Confirm(std::optional<SequenceId> only) {
  std::string text;
  for (const SequenceId sequence : std::vector(unconfirmed_)) {
    if (only.value_or(sequence) != sequence) continue;
    engine_->Remove(sequence);
    kv_->ConfirmRemoved(sequence);
    std::erase(unconfirmed_, sequence);
    text = "removed";
  }
  return text.empty() ? "nothing to remove" : text;
}

void KvTranscript::Forget(const Ticket& ticket) {
  std::erase_if(pending_, [&](const Pending& pending) { return pending.ticket == ticket; });
}

// As the model sees them, which is as Snapshot tells.
std::vector<SessionLine> KvTranscript::Sessions() const {
  std::vector<SessionLine> lines;
  if (!kv_) return lines;
  auto add = [&](const KvModel::Session& session, bool closing) {
    lines.push_back({"s" + std::to_string(session.key.session.bytes[0]), session.key, session.key.epoch, session.sequence, session.reserved,
                     PastLen(static_cast<uint32_t>(session.log.size())), session.last, session.acked,
                     static_cast<uint32_t>(session.queue.size()), session.executing(), closing});
  };
  for (const KvModel::Session& session : kv_->model().live()) add(session, false);
  for (const KvModel::Closing& gone : kv_->model().closing()) add(gone.session, true);
  return lines;
}

// Every session holds what its answers said, and the engine the same for every session that no step and no predecessor keeps busy.
void KvTranscript::Watch() {
  const std::vector<SessionLine> sessions = Sessions();
  std::set<SequenceId> used;
  for (const SessionLine& line : sessions) {
    used.insert(line.sequence);
    if (line.closing) continue;
    const std::span<const Token> log = kv_->TokenLog(line.key);
    const Mirror& mirror = mirrors_[line.name];
    if (mirror.epoch != line.epoch || !std::ranges::equal(log, mirror.committed)) Problem(line.name + " does not hold what its answers said");
    const bool predecessor = std::ranges::any_of(
        sessions, [&](const SessionLine& other) { return other.closing && other.sequence == line.sequence; });
    if (predecessor || line.executing || kv_->model().removing(line.sequence)) continue;
    if (!std::ranges::equal(engine_->tokens(line.sequence), log)) Problem("the engine does not hold what " + line.name + " committed");
  }
  for (uint32_t i = 0; i < config_.sessions_max; ++i) {
    const SequenceId sequence(static_cast<int32_t>(i));
    if (used.contains(sequence) || kv_->model().removing(sequence)) continue;
    if (engine_->past_len(sequence).value > 0) Problem("a free sequence still holds tokens");
  }
}

void KvTranscript::Problem(const std::string& problem) {
  if (problem_.empty()) problem_ = command_ + ": " + problem;
}

std::string CommandOf(const std::string& line) {
  std::string command = line.substr(0, std::min(line.find('#'), line.find("->")));
  while (!command.empty() && command.back() == ' ') command.pop_back();
  return command;
}

std::vector<std::string> RewriteTranscript(const std::vector<std::string>& lines, std::string& problem) {
  size_t width = 0;
  for (const std::string& line : lines) width = std::max(width, CommandOf(line).size());
  KvTranscript transcript;
  std::vector<std::string> rewritten;
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::string command = CommandOf(lines[i]);
    if (command.empty()) {
      rewritten.push_back(lines[i]);
      continue;
    }
    rewritten.push_back(command + std::string(width - command.size(), ' ') + " -> " + transcript.Execute(command));
    if (problem.empty() && !transcript.problem().empty()) problem = "line " + std::to_string(i + 1) + ": " + transcript.problem();
  }
  return rewritten;
}

}  // namespace meshnet::kv
