// What transcripts (tests/contract) cannot say: what results and refusals carry, and that nothing big is copied.
#include "kv/hot_kv.h"

#include <gtest/gtest.h>

#include <variant>

#include "protocol/prefix_digest.h"

namespace meshnet::kv {
namespace {

class NothingRecycled : public SequenceProbe {
 public:
  PastLen IntactFrom(SequenceId) const override { return PastLen(0); }
};

class HotKvTest : public ::testing::Test {
 protected:
  static HotKvConfig Config() {
    HotKvConfig config;
    config.vocabulary_size = 100;
    config.incarnation.bytes.fill(9);
    return config;
  }
  static SessionKey Key(uint16_t number, uint64_t epoch = 1) {
    SessionKey key;
    key.session.bytes[0] = static_cast<uint8_t>(number);
    key.session.bytes[1] = static_cast<uint8_t>(number >> 8);
    key.epoch = Epoch(epoch);
    return key;
  }
  OpenAccepted Open(const SessionKey& key, uint32_t reserve = 64) {
    OpenRequest request;
    request.key = key;
    request.reserve_tokens = reserve;
    OpenDecision decision = kv_.Open(request, now_);
    EXPECT_TRUE(std::holds_alternative<OpenAccepted>(decision));
    return std::get<OpenAccepted>(std::move(decision));
  }
  Step MakeStep(const SessionKey& key, uint64_t seq, std::vector<Token> tokens) {
    Step step;
    step.key = key;
    step.incarnation = Config().incarnation;
    step.seq = StepSeq(seq);
    const std::span<const Token> log = kv_.TokenLog(key);
    step.start = PastLen(static_cast<uint32_t>(log.size()));
    step.prefix_digest = DigestOfPrefix("", log);
    step.tokens = std::move(tokens);
    step.ack = StepSeq(seq - 1);
    return step;
  }
  Ticket Admit(const Step& step) {
    StepDecision decision = kv_.Admit(step, nullptr, now_);
    EXPECT_TRUE(std::holds_alternative<StepAdmitted>(decision));
    return std::get<StepAdmitted>(decision).ticket;
  }
  Settled Run(const Step& step, StepResult result = {}) {
    const Ticket ticket = Admit(step);
    EXPECT_TRUE(kv_.Start(ticket, now_).has_value());
    return kv_.Settle(ticket, StepFate::kDone, std::make_shared<StepResult>(std::move(result)), "", now_);
  }

  NothingRecycled probe_;
  Time now_{std::chrono::hours(1)};
  HotKv kv_{Config(), probe_};
};

TEST_F(HotKvTest, ACommittedResultIsCompleteAndItsRowsAreNotCopied) {
  Open(Key(1));
  std::vector<float> values(64, 0.5f);
  const float* where = values.data();
  StepResult result;
  result.output = HiddenState(2, 32, std::move(values));
  result.sampled.push_back({.token = 7, .end_of_generation = false, .logprob = {}, .top = {}});
  result.compute_time = std::chrono::microseconds(12);
  const Settled settled = Run(MakeStep(Key(1), 1, {1, 2}), std::move(result));
  ASSERT_TRUE(settled.result);
  EXPECT_EQ(settled.result->output.values().data(), where);
  EXPECT_EQ(settled.result->seq, StepSeq(1));
  EXPECT_EQ(settled.result->past_len, PastLen(2));
  const Token tokens[] = {1, 2};
  EXPECT_EQ(settled.result->digest, DigestOfPrefix("", tokens));
  EXPECT_EQ(settled.result->credit, (Credit{StepSeq(4), 2048}));
  EXPECT_EQ(settled.result->kv_tokens_reserved, 64u);
  EXPECT_EQ(settled.result->sampled.at(0).token, 7);
  EXPECT_EQ(settled.result->compute_time, std::chrono::microseconds(12));
  EXPECT_FALSE(settled.result->replayed);
  EXPECT_FALSE(settled.refusal);

  Step again = MakeStep(Key(1), 1, {1, 2});
  again.start = PastLen(0);
  again.prefix_digest = DigestOfPrefix("", {});
  again.ack = StepSeq(0);
  StepDecision decision = kv_.Admit(again, nullptr, now_);
  ASSERT_TRUE(std::holds_alternative<StepReplayed>(decision));
  EXPECT_EQ(std::get<StepReplayed>(decision).result, settled.result) << "the very same record";
}

TEST_F(HotKvTest, ARefusalCarriesWhatItsCallerNeedsToRecover) {
  Open(Key(1, 4));
  Run(MakeStep(Key(1, 4), 1, {1, 2, 3}));
  Step step = MakeStep(Key(1, 4), 2, {4});
  step.start = PastLen(9);
  const StepDecision decision = kv_.Admit(step, nullptr, now_);
  const Refusal& refusal = std::get<Refusal>(decision);
  EXPECT_EQ(refusal.incarnation, Config().incarnation);
  EXPECT_EQ(refusal.fence, Epoch(4));
  ASSERT_TRUE(refusal.session);
  EXPECT_EQ(refusal.session->past_len, PastLen(3));
  EXPECT_EQ(refusal.session->digest, DigestOfPrefix("", kv_.TokenLog(Key(1, 4))));
  EXPECT_EQ(refusal.session->next_step, StepSeq(2));
  EXPECT_EQ(refusal.session->step_seq_max, StepSeq(4));
  EXPECT_EQ(refusal.message.find(Key(1).session.Hex()), std::string::npos);
  EXPECT_NE(refusal.message.find("starts at 9, but the session holds 3 tokens"), std::string::npos) << refusal.message;

  step.key = Key(1, 3);
  const StepDecision stale = kv_.Admit(step, nullptr, now_);
  EXPECT_FALSE(std::get<Refusal>(stale).session) << "it is not the live one's to know";
  EXPECT_EQ(std::get<Refusal>(stale).fence, Epoch(4));
}

// A trial of a sampler is expensive: whoever is fenced, unknown, out of order or only sends again what was done must not get one.
TEST_F(HotKvTest, TheCallersVerdictIsNotAskedForAStepThatIsAnsweredBefore) {
  Open(Key(1));
  const Step first = MakeStep(Key(1), 1, {1, 2});
  Run(first);
  const FieldsCheck never = []() -> std::optional<Refusal> {
    ADD_FAILURE() << "asked";
    return std::nullopt;
  };
  EXPECT_TRUE(std::holds_alternative<StepReplayed>(kv_.Admit(first, never, now_)));
  EXPECT_TRUE(std::holds_alternative<Refusal>(kv_.Admit(MakeStep(Key(1), 3, {1}), never, now_)));
  EXPECT_TRUE(std::holds_alternative<Refusal>(kv_.Admit(MakeStep(Key(2), 1, {1}), never, now_)));
  Step other = MakeStep(Key(1), 2, {1});
  other.incarnation.bytes[0] ^= 1;
  EXPECT_TRUE(std::holds_alternative<Refusal>(kv_.Admit(other, never, now_)));
}

TEST_F(HotKvTest, TheCallersVerdictIsReportedWithTheStateOfTheSession) {
  Open(Key(1));
  Refusal verdict;
  verdict.reason = Reason::kBadRequest;
  verdict.detail = Detail::kShape;
  verdict.message = "stage 1: 3 rows for 1 token";
  const StepDecision decision = kv_.Admit(MakeStep(Key(1), 1, {1}), [&] { return verdict; }, now_);
  const Refusal& refusal = std::get<Refusal>(decision);
  EXPECT_EQ(refusal.detail, Detail::kShape);
  EXPECT_EQ(refusal.message, verdict.message);
  EXPECT_EQ(refusal.incarnation, Config().incarnation);
  EXPECT_TRUE(refusal.session);
}

TEST_F(HotKvTest, StatsCountWhatHappened) {
  Open(Key(1));
  Open(Key(2));
  Run(MakeStep(Key(1), 1, {1, 2}));
  Admit(MakeStep(Key(2), 1, {1}));
  kv_.Admit(MakeStep(Key(2), 9, {1}), nullptr, now_);
  const ShardStats stats = kv_.Stats(now_ + std::chrono::seconds(3));
  EXPECT_EQ(stats.sessions_live, 2u);
  EXPECT_EQ(stats.sessions_busy, 1u);
  EXPECT_EQ(stats.steps_queued, 1u);
  EXPECT_EQ(stats.kv_tokens_reserved, 128u);
  EXPECT_EQ(stats.kv_tokens_used, 2u);
  EXPECT_EQ(stats.sequences_free, 6u);
  EXPECT_EQ(stats.tokens_committed, 2u);
  EXPECT_EQ(stats.refusals, (std::vector<std::pair<std::string, uint64_t>>{{"step-gap", 1}}));
  ASSERT_EQ(stats.sessions.size(), 2u);
  EXPECT_EQ(stats.sessions[0].id_prefix, "01000000");
  EXPECT_EQ(stats.sessions[0].idle_seconds, 3.0);
  EXPECT_TRUE(stats.sessions[1].busy);
}

TEST_F(HotKvTest, AStepThatRunsInAPoisonedShardIsRefusedOnce) {
  Open(Key(1));
  const Ticket ticket = Admit(MakeStep(Key(1), 1, {1}));
  ASSERT_TRUE(kv_.Start(ticket, now_));
  kv_.Poison();
  const Settled settled = kv_.Settle(ticket, StepFate::kDone, std::make_shared<StepResult>(), "", now_);
  ASSERT_TRUE(settled.refusal);
  EXPECT_EQ(settled.refusal->reason, Reason::kPoisoned);
  EXPECT_EQ(kv_.Stats(now_).refusals, (std::vector<std::pair<std::string, uint64_t>>{{"poisoned", 1}}));
  EXPECT_EQ(kv_.Stats(now_).sessions_lost, 1u);
}

TEST_F(HotKvTest, UnacknowledgedLogitsHaveABound) {
  HotKvConfig config = Config();
  config.logits_bytes_max = 3 * 100 * sizeof(float);  // three rows
  HotKv kv(config, probe_);
  OpenRequest request;
  request.key = Key(1);
  request.reserve_tokens = 64;
  ASSERT_TRUE(std::holds_alternative<OpenAccepted>(kv.Open(request, now_)));
  std::vector<Token> log;
  auto step_of = [&](uint64_t seq, uint32_t tokens, RowsWanted rows) {
    Step step = MakeStep(Key(1), seq, std::vector<Token>(tokens, 1));
    step.start = PastLen(static_cast<uint32_t>(log.size()));
    step.prefix_digest = DigestOfPrefix("", log);
    step.rows = rows;
    step.logits_wanted = true;
    step.ack = StepSeq(0);
    return step;
  };
  auto commit = [&](const Step& step) {
    const StepDecision decision = kv.Admit(step, nullptr, now_);
    ASSERT_TRUE(std::holds_alternative<StepAdmitted>(decision));
    const Ticket ticket = std::get<StepAdmitted>(decision).ticket;
    ASSERT_TRUE(kv.Start(ticket, now_));
    kv.Settle(ticket, StepFate::kDone, std::make_shared<StepResult>(), "", now_);
    log.insert(log.end(), step.tokens.begin(), step.tokens.end());
  };
  commit(step_of(1, 5, RowsWanted::kAll));  // more than the bound, but alone
  Step next = step_of(2, 2, RowsWanted::kAll);
  const std::string before = kv.Snapshot();
  const StepDecision refused = kv.Admit(next, nullptr, now_);
  ASSERT_TRUE(std::holds_alternative<Refusal>(refused));
  EXPECT_EQ(std::get<Refusal>(refused).reason, Reason::kCreditExceeded);
  EXPECT_TRUE(std::get<Refusal>(refused).retry_after);
  EXPECT_EQ(kv.Snapshot(), before);
  next.ack = StepSeq(1);
  commit(next);  // two rows are kept now
  Step third = step_of(3, 9, RowsWanted::kLast);
  third.ack = StepSeq(1);
  ASSERT_TRUE(std::holds_alternative<StepAdmitted>(kv.Admit(third, nullptr, now_)));  // and one is queued
  log.insert(log.end(), third.tokens.begin(), third.tokens.end());
  Step fourth = step_of(4, 1, RowsWanted::kLast);
  fourth.ack = StepSeq(1);
  EXPECT_TRUE(std::holds_alternative<Refusal>(kv.Admit(fourth, nullptr, now_)));
  fourth.logits_wanted = false;
  EXPECT_TRUE(std::holds_alternative<StepAdmitted>(kv.Admit(fourth, nullptr, now_))) << "other steps go on";
}

TEST_F(HotKvTest, ATicketOfAnEarlierLifeStartsNothing) {
  Open(Key(1));
  const Ticket ticket = Admit(MakeStep(Key(1), 1, {1}));
  kv_.Cancel(Key(1));
  EXPECT_FALSE(kv_.Start(ticket, now_));
  const Ticket again = Admit(MakeStep(Key(1), 1, {1}));
  EXPECT_FALSE(kv_.Start(ticket, now_)) << "the same number, another life";
  EXPECT_TRUE(kv_.Start(again, now_));
  EXPECT_FALSE(kv_.Start(again, now_)) << "it executes already";
}

TEST_F(HotKvTest, RetryAfterIsBoundedByTheNextExpiry) {
  HotKvConfig config = Config();
  config.sessions_max = 2;
  config.context_tokens = 16;
  config.budget_tokens = 16;
  config.ttl = std::chrono::milliseconds(500);
  HotKv kv(config, probe_);
  OpenRequest request;
  request.reserve_tokens = 10;
  request.key = Key(1);
  ASSERT_TRUE(std::holds_alternative<OpenAccepted>(kv.Open(request, now_)));
  Step step = MakeStep(Key(1), 1, {1});
  step.prefix_digest = DigestOfPrefix("", {});
  ASSERT_TRUE(std::holds_alternative<StepAdmitted>(kv.Admit(step, nullptr, now_)));
  request.key = Key(2);
  const OpenDecision refused = kv.Open(request, now_);
  EXPECT_EQ(std::get<Refusal>(refused).retry_after, std::chrono::seconds(1)) << "nothing is idle, so a second is as good as any";
}

TEST(HotKvDeathTest, AConfigurationThatCannotHoldAborts) {
  NothingRecycled probe;
  HotKvConfig config;
  EXPECT_DEATH(HotKv(config, probe), "vocabulary_size");
  config.vocabulary_size = 10;
  config.sessions_max = 257;
  EXPECT_DEATH(HotKv(config, probe), "sessions_max");
  config.sessions_max = 1;
  config.budget_tokens = config.context_tokens - 1;
  EXPECT_DEATH(HotKv(config, probe), "budget_tokens");
}

}  // namespace
}  // namespace meshnet::kv
