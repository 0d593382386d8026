#include "differential/bed.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "engine/llama/counter_random.h"
#include "engine/llama/llama_engine_create.h"
#include "protocol/prefix_digest.h"

namespace meshnet::differential {
namespace {

constexpr uint64_t kFrameBytes = 64u << 20;
constexpr Token kOrdinaryTokens = 190;

EngineOptions OptionsOf(const World& world, const std::string& path) {
  EngineOptions options;
  options.shard_path = path;
  options.numerics = world.numerics;
  options.threads = 1;
  options.sessions_max = world.settings.sessions_max;
  options.context_tokens = world.settings.context_tokens;
  options.budget_tokens = world.cells;
  options.ubatch_tokens = world.chunk_rows_max;
  options.kv_type_k = options.kv_type_v = world.kv_type;
  return options;
}

FakeEngineOptions TwinOf(const EngineInfo& info, uint32_t window_cells) {
  FakeEngineOptions options;
  options.model.layer_count = info.layer_count;
  options.model.width = info.boundary_width;
  options.model.vocabulary_size = info.vocabulary_size;
  options.range = info.range;
  options.sessions_max = info.sequences_max;
  options.context_tokens = info.context_tokens;
  options.budget_tokens = info.budget_tokens;
  options.chunk_rows_max = info.chunk_rows_max;
  options.truncation_class = info.truncation_class;
  options.window_tokens = info.window_tokens;
  options.window_slack_tokens = window_cells > info.window_tokens ? window_cells - info.window_tokens : 0;
  options.numerics = info.numerics;
  return options;
}

std::vector<Token> Tokens(const Operation& operation, uint64_t client) {
  std::vector<Token> tokens(operation.count);
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<Token>(MixBits((client << 40) + (uint64_t{operation.content} << 16) + i) % kOrdinaryTokens);
  }
  if (operation.poison && !tokens.empty()) tokens[operation.content % tokens.size()] = kPoison;
  if (operation.bad_token && !tokens.empty()) tokens.back() = 1 << 20;
  return tokens;
}

std::string Words(const Refusal& refusal) { return std::string(Name(refusal.reason)) + "/" + Name(refusal.detail) + " \"" + refusal.message + "\""; }

// The engine's own words are its own.
bool NamesCause(const Refusal& refusal) { return refusal.reason == Reason::kExecFailed || refusal.detail == Detail::kLost; }

}  // namespace

template <typename T>
void Bed::Same(const char* what, const T& real, const T& fake) {
  if (!(real == fake)) Complain(std::string(what) + " of the two shards differ");
}

Result<std::unique_ptr<RealTwin>> Bed::MakeReal(const std::string& model_path, Misfortune& misfortune, bool fills) {
  Result<std::unique_ptr<LlamaEngine>> engine = CreateLlamaEngine(OptionsOf(world_, model_path), {.abort = Misfortune::Abort, .data = &misfortune});
  if (!engine.ok()) return engine.status();
  return std::make_unique<RealTwin>(std::move(*engine), misfortune, fills);
}

Bed::Bed(const World& world, const std::string& model_path) : world_(world), clients_(world.clients) {
  Result<std::unique_ptr<RealTwin>> real = MakeReal(model_path, misfortune_, true);
  Result<std::unique_ptr<ReferenceContext>> fresh = CreateReferenceContext(model_path, OptionsOf(world, model_path));
  if (!real.ok() || !fresh.ok()) {
    Complain(real.ok() ? fresh.status().message() : real.status().message());
    return;
  }
  fresh_ = std::move(*fresh);
  real_engine_ = real->get();
  auto fake = std::make_unique<FakeTwin>(TwinOf(real_engine_->info(), real_engine_->cells().window_cells()), *real_engine_, misfortune_, world.shared_windows);
  fake_engine_ = fake.get();
  description_.model_root.bytes.fill(0xab);
  description_.incarnation.bytes.fill(0x17);
  ShardDescription fakes = description_;
  DescribeEngine(*real_engine_, world.settings, kFrameBytes, description_);
  DescribeEngine(*fake, world.settings, kFrameBytes, fakes);
  Same("the budgets", description_.limits.budget_tokens, fakes.limits.budget_tokens);
  Same("the contexts", description_.limits.context_tokens, fakes.limits.context_tokens);
  Same("the chunks", description_.limits.chunk_rows_max, fakes.limits.chunk_rows_max);
  Same("the truncation classes", description_.truncation_class, fakes.truncation_class);
  real_.core = std::make_unique<ShardCore>(std::move(*real), description_, clock_);
  fake_.core = std::make_unique<ShardCore>(std::move(fake), fakes, clock_);
  if (world.tolerance > 0) {
    Result<std::unique_ptr<RealTwin>> plain = MakeReal(model_path, plain_misfortune_, false);
    if (!plain.ok()) {
      Complain(plain.status().message());
      return;
    }
    plain_.core = std::make_unique<ShardCore>(std::move(*plain), description_, clock_);
  }
  for (size_t i = 0; i < clients_.size(); ++i) clients_[i].id.bytes.fill(static_cast<uint8_t>(i + 1));
}

std::string Bed::Do(const Operation& operation) {
  if (!problem_.empty()) return problem_;
  ++tally_["operations"];
  Client& client = clients_[operation.client % clients_.size()];
  const SessionKey key{client.id, Epoch(client.epoch.value + static_cast<uint64_t>(static_cast<int64_t>(operation.epoch)))};
  switch (operation.kind) {
    case Operation::Kind::kOpen: Open(client, operation); break;
    case Operation::Kind::kStep: SendStep(client, operation); break;
    case Operation::Kind::kDecodes: {
      for (Client& each : clients_) {
        Operation one = operation;
        one.kind = Operation::Kind::kStep;
        one.decode = true;
        one.count = 1;
        one.poison = operation.poison && &each == &client;
        if (each.live && each.flight.size() < 3) SendStep(each, one);
      }
      break;
    }
    case Operation::Kind::kResend: Resend(client, operation.conflict); break;
    case Operation::Kind::kRun: RunCalls(operation); break;
    case Operation::Kind::kCancel:
      Each([&](Side& side) { side.core->Cancel(key); });
      break;
    case Operation::Kind::kRelease:
      Same("the outcomes of a release", real_.core->Release(key), fake_.core->Release(key));
      if (plain_.core) plain_.core->Release(key);
      break;
    case Operation::Kind::kAdvance:
      clock_.Advance(std::chrono::milliseconds(operation.count));
      Each([](Side& side) { side.core->Expire(); });
      break;
  }
  Settle();
  if (problem_.empty()) CompareState();
  return problem_;
}

void Bed::Open(Client& client, const Operation& operation) {
  OpenRequest request;
  request.key = {client.id, Epoch(client.epoch.value + static_cast<uint64_t>(static_cast<int64_t>(operation.epoch)))};
  request.model_root = description_.model_root;
  request.range = description_.range;
  request.reserve_tokens = operation.count;
  const auto real = real_.core->Open(request);
  const auto fake = fake_.core->Open(request);
  if (plain_.core) plain_.core->Open(request);
  // What a newer epoch or an eviction dropped is answered before the session begins anew.
  Settle();
  if (real.index() != fake.index()) return Complain("one shard opened the session, the other did not");
  if (const Refusal* refusal = std::get_if<Refusal>(&real)) {
    ++tally_[std::string("open refused: ") + Name(refusal->reason)];
    return CompareRefusals(*refusal, std::get<Refusal>(fake));
  }
  const OpenReply& a = std::get<OpenReply>(real);
  const OpenReply& b = std::get<OpenReply>(fake);
  Same("the lengths in an Open's reply", a.past_len, b.past_len);
  Same("the digests in an Open's reply", a.digest, b.digest);
  Same("the next steps in an Open's reply", a.next_step, b.next_step);
  Same("the credit in an Open's reply", a.credit, b.credit);
  Same("the reservations in an Open's reply", a.reserved_tokens, b.reserved_tokens);
  Same("the superseded epochs", a.superseded, b.superseded);
  if (request.key.epoch != client.epoch || a.past_len.value == 0) {
    client.log.clear();
    client.shapes.clear();
    client.rows.clear();
  }
  client.epoch = request.key.epoch;
  client.live = true;
  client.last = StepSeq(a.next_step.value - 1 - client.flight.size());
  if (a.past_len.value != client.log.size()) Complain("the session holds " + std::to_string(a.past_len.value) + " tokens, its client has " + std::to_string(client.log.size()));
}

std::vector<Token> Bed::Projected(const Client& client) const {
  std::vector<Token> tokens = client.log;
  for (uint64_t request : client.flight) {
    const Step& step = sent_.at(request);
    tokens.resize(step.start.value);
    tokens.insert(tokens.end(), step.tokens.begin(), step.tokens.end());
  }
  return tokens;
}

void Bed::SendStep(Client& client, const Operation& operation) {
  if (!client.live && operation.content % 8 != 0) {
    Open(client, {.kind = Operation::Kind::kOpen, .client = operation.client, .count = operation.content % 3 == 0 ? 0 : world_.settings.context_tokens / 2});
    if (!client.live) return;
  }
  const std::vector<Token> projected = Projected(client);
  Step step;
  step.key = {client.id, Epoch(client.epoch.value + static_cast<uint64_t>(static_cast<int64_t>(operation.epoch)))};
  step.incarnation = description_.incarnation;
  if (operation.other_incarnation) step.incarnation.bytes[0] ^= 1;
  step.seq = StepSeq(client.last.value + client.flight.size() + 1 + static_cast<uint64_t>(static_cast<int64_t>(operation.seq)));
  step.kind = operation.decode ? StepKind::kDecode : StepKind::kPrefill;
  const size_t start = projected.size() - std::min<size_t>(projected.size(), operation.back) + static_cast<size_t>(operation.ahead);
  step.start = PastLen(static_cast<uint32_t>(start));
  step.prefix_digest = DigestOfPrefix("", std::span(projected).first(std::min(start, projected.size())));
  if (operation.wrong_digest) step.prefix_digest.bytes[3] ^= 1;
  step.tokens = Tokens(operation, operation.client);
  step.rows = static_cast<RowsWanted>(operation.rows);
  step.logits_wanted = step.rows != RowsWanted::kNone;
  if (operation.sample) {
    step.sampling.emplace();
    step.sampling->temperature = 0;
  }
  if (operation.acknowledge) step.ack = client.last;
  if (operation.short_deadline) step.deadline = clock_.Now() + std::chrono::milliseconds(operation.content % 2 * 10);
  Send(client, std::move(step), false);
}

void Bed::Resend(Client& client, bool conflict) {
  if (!client.newest) return;
  Step step = sent_.at(*client.newest).Copy();
  if (conflict) step.tokens.front() = (step.tokens.front() + 1) % kOrdinaryTokens;
  // Rolled back or cancelled meanwhile: then it is the next step anew.
  const bool next = step.key.epoch == client.epoch && step.seq.value == client.last.value + client.flight.size() + 1;
  Send(client, std::move(step), !next);
}

void Bed::Send(Client& client, Step step, bool again) {
  const uint64_t request = next_request_++;
  Each([&](Side& side) { side.core->Submit({request, {step.Copy(), std::nullopt}}, side.answers); });
  ++tally_["steps sent"];
  if (!again) {
    client.flight.push_back(request);
    client.newest = request;
  }
  sent_.emplace(request, std::move(step));
  Settle();
}

void Bed::RunCalls(const Operation& operation) {
  for (uint32_t i = 0; i < operation.count && problem_.empty(); ++i) {
    const Scheduler::Plan real = real_.core->Next();
    const Scheduler::Plan fake = fake_.core->Next();
    const Scheduler::Plan plain = plain_.core ? plain_.core->Next() : Scheduler::Plan();
    if (real.verdict != fake.verdict || real.tickets != fake.tickets) return Complain("the two shards would run different steps");
    if (real.verdict == Scheduler::Plan::Verdict::kIdle) return;
    if (real.verdict == Scheduler::Plan::Verdict::kWait) {
      clock_.Advance(real.until - clock_.Now());
      continue;
    }
    misfortune_.struck = false;
    misfortune_.break_at = i == 0 ? operation.break_at : 0;
    misfortune_.fates.clear();
    plain_misfortune_ = misfortune_;
    real_.core->Run(real);
    misfortune_.break_at = 0;
    fake_.core->Run(fake);
    if (plain_.core) plain_.core->Run(plain);
    plain_misfortune_.break_at = 0;
    misfortune_.unproven_cuts.clear();
    ++tally_["engine calls"];
    if (real.tickets.size() > 1) ++tally_["engine calls of several sessions"];
    if (misfortune_.struck) ++tally_["computations broken off"];
    Settle();
  }
}

Bed::Client& Bed::Owner(const Step& step) { return *std::ranges::find(clients_, step.key.session, &Client::id); }

void Bed::Settle() {
  Each([](Side& side) { side.core->FlushAnswers(); });
  const std::vector<StepAnswer> real = std::exchange(real_.answers->list, {}), fake = std::exchange(fake_.answers->list, {});
  if (plain_.core) ComparePlain(real, std::exchange(plain_.answers->list, {}));
  if (real.size() != fake.size()) return Complain("the two shards answered different numbers of steps");
  for (size_t i = 0; i < real.size() && problem_.empty(); ++i) {
    if (real[i].request_id != fake[i].request_id) return Complain("the two shards answered in another order");
    const Step& step = sent_.at(real[i].request_id);
    std::erase(Owner(step).flight, real[i].request_id);
    const Refusal* no_real = std::get_if<Refusal>(&real[i].outcome);
    const Refusal* no_fake = std::get_if<Refusal>(&fake[i].outcome);
    if (no_real && no_fake) {
      SettleRefusal(*no_real, *no_fake, step);
    } else if (no_real || no_fake) {
      Complain(std::string(no_real ? "llama.cpp's shard" : "the fake's shard") + " alone refused: " + Words(no_real ? *no_real : *no_fake));
    } else {
      SettleResult(std::get<RecordedResult>(real[i].outcome), std::get<RecordedResult>(fake[i].outcome), step);
    }
  }
}

void Bed::ComparePlain(const std::vector<StepAnswer>& real, const std::vector<StepAnswer>& plain) {
  if (real.size() != plain.size()) return Complain("the shard without filling answered another number of steps");
  for (size_t i = 0; i < real.size(); ++i) {
    if (real[i].outcome.index() != plain[i].outcome.index()) return Complain("the shard without filling decided otherwise");
    const RecordedResult* a = std::get_if<RecordedResult>(&real[i].outcome);
    if (!a) continue;
    const std::span<const float> came = a->result->output.values(), expected = std::get<RecordedResult>(plain[i].outcome).result->output.values();
    if (came.size() != expected.size() || (!came.empty() && std::memcmp(came.data(), expected.data(), came.size_bytes()) != 0)) {
      return Complain("what lies in free cells changed a bit");
    }
    ++tally_["steps compared with free cells as they were left"];
  }
}

void Bed::CompareRefusals(const Refusal& real, const Refusal& fake) {
  if (real.reason != fake.reason || real.detail != fake.detail || (!NamesCause(real) && real.message != fake.message)) {
    Complain("llama.cpp's shard refused with " + Words(real) + ", the fake's with " + Words(fake));
  }
  Same("the fences of refusals", real.fence, fake.fence);
  Same("the incarnations of refusals", real.incarnation, fake.incarnation);
  Same("the places to start at of refusals", real.nearest_past_len, fake.nearest_past_len);
  Same("the waits of refusals", real.retry_after, fake.retry_after);
  if (real.session.has_value() != fake.session.has_value()) return Complain("one refusal alone tells of the session");
  if (!real.session) return;
  Same("the lengths in refusals", real.session->past_len, fake.session->past_len);
  Same("the digests in refusals", real.session->digest, fake.session->digest);
  Same("the next steps in refusals", real.session->next_step, fake.session->next_step);
  Same("the credit in refusals", real.session->step_seq_max, fake.session->step_seq_max);
}

void Bed::GoBack(Client& client, uint32_t keep) {
  for (size_t held = client.log.size(); held > keep;) {
    const auto cut = static_cast<uint32_t>(std::min<size_t>(client.shapes.back(), held - keep));
    held -= cut;
    client.shapes.back() -= cut;
    if (client.shapes.back() == 0) client.shapes.pop_back();
  }
  client.log.resize(keep);
}

void Bed::SettleRefusal(const Refusal& real, const Refusal& fake, const Step& step) {
  CompareRefusals(real, fake);
  ++tally_[std::string("step refused: ") + Name(real.reason) + (real.detail == Detail::kNone ? "" : std::string("/") + Name(real.detail))];
  Client& client = Owner(step);
  if (step.key.epoch != client.epoch) return;
  if (real.reason == Reason::kExecFailed && step.start.value < client.log.size()) GoBack(client, step.start.value);
  const bool gone = real.detail == Detail::kNoSession || real.detail == Detail::kEvictedLru || real.detail == Detail::kEvictedTtl || real.detail == Detail::kLost;
  if (real.reason != Reason::kCacheMiss || !gone) return;
  client.live = false;
  client.log.clear();
  client.shapes.clear();
}

void Bed::SettleResult(const RecordedResult& real, const RecordedResult& fake, const Step& step) {
  const StepResult& a = *real.result;
  const StepResult& b = *fake.result;
  Same("the replays", real.replayed, fake.replayed);
  Same("the numbers of results", a.seq, b.seq);
  Same("the lengths of results", a.past_len, b.past_len);
  Same("the digests of results", a.digest, b.digest);
  Same("the credit of results", a.credit, b.credit);
  Same("the reservations of results", a.kv_tokens_reserved, b.kv_tokens_reserved);
  Same("the rows of results", a.output.rows(), b.output.rows());
  Same("the widths of results", a.output.width(), b.output.width());
  Same("the sampled tokens of results", a.sampled.size(), b.sampled.size());
  Client& client = Owner(step);
  const std::vector<float> values(a.output.values().begin(), a.output.values().end());
  if (real.replayed || a.seq <= client.last) {
    ++tally_[real.replayed ? "replays" : "steps joined"];
    if (client.rows[a.seq.value] != values) Complain("a replay is not what came the first time");
    return;
  }
  if (step.start.value < client.log.size()) ++tally_["steps that went back"];
  GoBack(client, step.start.value);
  client.log.insert(client.log.end(), step.tokens.begin(), step.tokens.end());
  client.shapes.push_back(static_cast<uint32_t>(step.tokens.size()));
  client.last = a.seq;
  if (a.past_len.value != client.log.size()) Complain("a result ends at " + std::to_string(a.past_len.value) + ", not where its client does");
  client.rows[a.seq.value] = values;
  if (client.rows.size() > 8) client.rows.erase(client.rows.begin());
  CompareRows(client, step, a);
}

void Bed::CompareRows(const Client& client, const Step& step, const StepResult& result) {
  const uint32_t rows = step.rows == RowsWanted::kNone ? 0 : step.rows == RowsWanted::kLast ? 1 : static_cast<uint32_t>(step.tokens.size());
  if (result.output.rows() != rows) return Complain("a step came out with " + std::to_string(result.output.rows()) + " rows");
  if (rows == 0) return;
  fresh_->Reset();
  std::vector<float> expected;
  const uint32_t width = fresh_->vocabulary_size();
  // In mode exact shapes do not matter, so they are other ones; else the same.
  const bool exact = world_.numerics == NumericsMode::kExact;
  size_t next_shape = 0;
  for (size_t begin = 0; begin < client.log.size();) {
    const uint64_t chunk = exact ? 1 + MixBits(client.log.size() * 977 + begin) % world_.chunk_rows_max : client.shapes.at(next_shape++);
    const std::span<const Token> part = std::span(client.log).subspan(begin, std::min<size_t>(chunk, client.log.size() - begin));
    const Result<HiddenState> logits = fresh_->Decode(part);
    if (!logits.ok()) return Complain(logits.status().message());
    expected.insert(expected.end(), logits->values().begin(), logits->values().end());
    begin += part.size();
  }
  const std::span<const float> last = std::span(expected).last(size_t{rows} * width);
  const std::span<const float> came = result.output.values();
  ++tally_["steps compared with a fresh context"];
  tally_["rows compared with a fresh context"] += rows;
  if (came.size() != last.size() || std::memcmp(came.data(), last.data(), last.size_bytes()) != 0) {
    float most = came.size() == last.size() ? 0 : INFINITY;
    for (size_t i = 0; i < std::min(came.size(), last.size()); ++i) most = std::max(most, std::fabs(came[i] - last[i]));
    const auto differs = static_cast<size_t>(std::ranges::mismatch(came, last).in1 - came.begin());
    if (most <= world_.tolerance) {
      ++tally_["steps that differ from a fresh context's within tolerance"];
      return;
    }
    return Complain("logits differ from a fresh context's by up to " + std::to_string(most) + ", first at position " +
                    std::to_string(client.log.size() - rows + differs / width) + " of a step that starts at " + std::to_string(step.start.value));
  }
  if (result.sampled.empty()) return;
  ++tally_["sampled tokens compared"];
  const std::span<const float> row = last.last(width);
  if (result.sampled.front().token != std::ranges::max_element(row) - row.begin()) Complain("the sampled token is not the likeliest one");
}

// The whole state of both machines, and what llama.cpp holds.
void Bed::CompareState() {
  real_.core->CheckInvariants();
  if (!real_.core->poison().empty()) Complain("llama.cpp's shard is poisoned: " + real_.core->poison());
  const auto without_values = [](std::string text) {  // of kept replies: the engines compute different ones
    for (size_t at = text.find(" values="); at != std::string::npos; at = text.find(" values=", at)) text.erase(at, text.find(' ', at + 1) - at);
    return text;
  };
  Same("the snapshots", without_values(real_.core->Snapshot()), without_values(fake_.core->Snapshot()));
  const ShardStats a = real_.core->Stats(), b = fake_.core->Stats();
  Same("the engine calls", a.engine_calls, b.engine_calls);
  Same("the refusals by reason", a.refusals, b.refusals);
  const EngineInfo& info = real_engine_->info();
  for (int32_t i = 0; i < static_cast<int32_t>(info.sequences_max); ++i) {
    const SequenceId sequence(i);
    const PastLen past = real_engine_->past_len(sequence);
    const int32_t first = real_engine_->cells().first(sequence), last = real_engine_->cells().last(sequence);
    const std::string where = "sequence " + std::to_string(i) + " of " + std::to_string(past.value) + " tokens: ";
    if (past != fake_engine_->past_len(sequence)) Complain(where + "the fake holds " + std::to_string(fake_engine_->past_len(sequence).value));
    if (last != static_cast<int32_t>(past.value) - 1) Complain(where + "llama.cpp's last position is " + std::to_string(last));
    if (std::string fault = real_engine_->cells().Fault(sequence, past); !fault.empty()) Complain(where + fault);
    ++tally_["positions of a sequence compared"];
    if (past.value == 0) continue;
    if (info.truncation_class == TruncationClass::kFull && first != 0) Complain(where + "llama.cpp's first position is " + std::to_string(first));
    if (info.truncation_class == TruncationClass::kWindow && !world_.shared_windows) {
      // Never less is kept than the fake keeps, but a sequence that was cut fills its ring sooner.
      const auto own = static_cast<int32_t>(fake_engine_->own_intact_from(sequence).value);
      if (first < own) Complain(where + "llama.cpp's first position is " + std::to_string(first) + ", the fake's is " + std::to_string(own));
      if (first > 0) ++tally_["windows recycled"];
    }
  }
}

Tally Bed::TakeTally() {
  if (!real_.core) return tally_;
  const ShardStats stats = real_.core->Stats();
  tally_["evicted: lru"] += stats.evictions_lru;
  tally_["evicted: ttl"] += stats.evictions_ttl;
  tally_["superseded"] += stats.evictions_superseded;
  tally_["sessions lost"] += stats.sessions_lost;
  tally_["lane exchanges"] += real_engine_->lane_exchanges();
  tally_["rows of free cells filled"] += real_engine_->filled_rows();
  tally_["truncations in the engine"] += real_engine_->cuts();
  return std::move(tally_);
}

}  // namespace meshnet::differential
