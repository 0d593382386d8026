#include "worker/shard_host.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <map>

#include "base/system_clock.h"
#include "engine/fake_engine.h"
#include "protocol/prefix_digest.h"
#include "worker/in_process_link.h"
#include "worker/test_shard.h"

namespace meshnet {
namespace {

using std::chrono::seconds;

TEST(ShardHostTest, AnswersAsTheModelWould) {
  TestShard shard;
  TestSession session(shard.link(), shard.description(), 1);
  ASSERT_TRUE(session.Open());
  StepResult prompt = session.MustPrefill({1, 2, 3, 4}, RowsWanted::kLast, Greedy());
  EXPECT_EQ(prompt.past_len, PastLen(4));
  ASSERT_EQ(prompt.sampled.size(), 1u);
  std::vector<Token> answer = {prompt.sampled[0].token};
  for (int i = 0; i < 5; ++i) answer.push_back(session.MustDecode(answer.back()).sampled.at(0).token);
  EXPECT_EQ(answer, FakeAnswer(shard.model(), std::vector<Token>{1, 2, 3, 4}, 6, Greedy()));
  shard.host().Inspect([](ShardCore& core) { core.CheckInvariants(); });
}

TEST(ShardHostTest, MergesTheDecodesOfManySessionsIntoOneCall) {
  TestShard shard({.sessions_max = 64, .context_tokens = 64, .budget_tokens = 64 * 64});
  std::vector<std::unique_ptr<TestSession>> sessions;
  for (uint8_t i = 0; i < 64; ++i) {
    sessions.push_back(std::make_unique<TestSession>(shard.link(), shard.description(), i + 1));
    ASSERT_TRUE(sessions.back()->Open());
    sessions.back()->MustPrefill({Token(i + 1), 2}, RowsWanted::kLast, Greedy());
  }
  // All decode steps arrive while the engine is busy with a chunk of somebody else.
  shard.engine_gate().Close();
  TestSession other(shard.link(), shard.description(), 200);
  std::future<Reply<StepResult>> busy = sessions[0]->Prefill({9, 9}, RowsWanted::kNone);
  shard.engine_gate().WaitForCall();
  std::vector<std::future<Reply<StepResult>>> decodes;
  for (size_t i = 1; i < sessions.size(); ++i) decodes.push_back(sessions[i]->Decode(5));
  const uint64_t calls = shard.engine().counts().runs;
  shard.engine_gate().Open();
  EXPECT_TRUE(std::holds_alternative<StepResult>(busy.get()));
  for (auto& decode : decodes) EXPECT_TRUE(std::holds_alternative<StepResult>(decode.get()));
  EXPECT_EQ(shard.engine().counts().runs - calls, 2u);  // the chunk that ran, and one batch of 63
}

TEST(ShardHostTest, AFirstStepIsAloneInItsCall) {
  TestShard shard;
  TestSession busy(shard.link(), shard.description(), 1), one(shard.link(), shard.description(), 2), other(shard.link(), shard.description(), 3);
  for (TestSession* session : {&busy, &one, &other}) ASSERT_TRUE(session->Open());
  shard.engine_gate().Close();
  std::vector<std::future<Reply<StepResult>>> replies;
  replies.push_back(busy.Prefill({1, 2}, RowsWanted::kNone));
  shard.engine_gate().WaitForCall();
  for (TestSession* session : {&one, &other}) replies.push_back(session->Decode(5));
  shard.engine_gate().Open();
  for (auto& reply : replies) EXPECT_TRUE(std::holds_alternative<StepResult>(reply.get()));
  EXPECT_EQ(shard.engine().counts().runs, 3u);
}

TEST(ShardHostTest, ReplaysWithoutRunningAgain) {
  TestShard shard;
  TestSession session(shard.link(), shard.description(), 1);
  ASSERT_TRUE(session.Open());
  Step step = session.PrefillStep({1, 2, 3}, RowsWanted::kLast, Greedy());
  StepResult first = std::get<StepResult>(session.Send(step).get());
  const uint64_t runs = shard.engine().counts().runs;
  StepResult again = std::get<StepResult>(session.Send(step).get());
  EXPECT_TRUE(again.replayed);
  EXPECT_EQ(again.sampled, first.sampled);
  EXPECT_EQ(again.digest, first.digest);
  EXPECT_EQ(shard.engine().counts().runs, runs);
  step.tokens[0] = 7;
  EXPECT_EQ(std::get<Refusal>(session.Send(std::move(step)).get()).reason, Reason::kStepConflict);
}

TEST(ShardHostTest, TheSameStepTwiceInTheQueueIsOneStep) {
  TestShard shard;
  TestSession session(shard.link(), shard.description(), 1);
  ASSERT_TRUE(session.Open());
  shard.engine_gate().Close();
  Step step = session.PrefillStep({1, 2, 3}, RowsWanted::kNone);
  TestSession other(shard.link(), shard.description(), 2);
  ASSERT_TRUE(other.Open());
  std::future<Reply<StepResult>> busy = other.Prefill({1}, RowsWanted::kNone);
  shard.engine_gate().WaitForCall();
  std::vector<std::future<Reply<StepResult>>> copies;
  for (int i = 0; i < 10; ++i) copies.push_back(session.Send(step));
  shard.engine_gate().Open();
  int results = 0, refused = 0;
  for (auto& copy : copies) {
    Reply<StepResult> reply = copy.get();
    if (std::holds_alternative<StepResult>(reply)) ++results;
    if (Refusal* refusal = std::get_if<Refusal>(&reply)) refused += refusal->reason == Reason::kCreditExceeded;
  }
  EXPECT_EQ(results, 8);  // the bound of waiters
  EXPECT_EQ(refused, 2);
  EXPECT_TRUE(std::holds_alternative<StepResult>(busy.get()));
  EXPECT_EQ(shard.engine().counts().steps, 2u);
}

TEST(ShardHostTest, ACancelTakesQueuedStepsOutWithoutEffect) {
  TestShard shard;
  TestSession session(shard.link(), shard.description(), 1), other(shard.link(), shard.description(), 2);
  ASSERT_TRUE(session.Open());
  ASSERT_TRUE(other.Open());
  shard.engine_gate().Close();
  std::future<Reply<StepResult>> busy = other.Prefill({1}, RowsWanted::kNone);
  shard.engine_gate().WaitForCall();
  std::future<Reply<StepResult>> first = session.Prefill({1, 2}, RowsWanted::kNone);
  std::future<Reply<StepResult>> second = session.Prefill({3, 4}, RowsWanted::kNone);
  shard.link().Cancel(session.key());
  shard.engine_gate().Open();
  EXPECT_EQ(std::get<Refusal>(first.get()).reason, Reason::kCancelled);
  EXPECT_EQ(std::get<Refusal>(second.get()).reason, Reason::kCancelled);
  EXPECT_TRUE(std::holds_alternative<StepResult>(busy.get()));
  session.Reset();
  EXPECT_EQ(session.MustPrefill({5, 6, 7}, RowsWanted::kNone).past_len, PastLen(3));
}

TEST(ShardHostTest, AStreamThatEndsCancelsOnlyWhatNobodyElseWaitsFor) {
  TestShard shard;
  TestSession session(shard.link(), shard.description(), 1), other(shard.link(), shard.description(), 2);
  ASSERT_TRUE(session.Open());
  ASSERT_TRUE(other.Open());
  std::unique_ptr<ShardLink> dying = ConnectInProcess(shard.host(), "dying");
  shard.engine_gate().Close();
  std::future<Reply<StepResult>> busy = other.Prefill({1}, RowsWanted::kNone);
  shard.engine_gate().WaitForCall();
  // Sent over the link that dies; the first is sent again over another one, as after a reconnect.
  Step step = session.PrefillStep({1, 2}, RowsWanted::kNone);
  std::future<Reply<StepResult>> lost = SendOver(*dying, step);
  std::future<Reply<StepResult>> again = session.Send(step);
  TestSession orphan(*dying, shard.description(), 3);
  shard.engine_gate().Open();
  ASSERT_TRUE(orphan.Open());
  EXPECT_TRUE(std::holds_alternative<StepResult>(busy.get()));
  EXPECT_TRUE(std::holds_alternative<StepResult>(again.get()));
  lost.get();

  shard.engine_gate().Close();
  busy = other.Prefill({1}, RowsWanted::kNone);
  shard.engine_gate().WaitForCall();
  std::future<Reply<StepResult>> dropped = orphan.Prefill({1, 2, 3}, RowsWanted::kNone);
  dying.reset();
  EXPECT_TRUE(std::holds_alternative<TransportFault>(dropped.get()));
  shard.engine_gate().Open();
  EXPECT_TRUE(std::holds_alternative<StepResult>(busy.get()));
  ShardStats stats = shard.Stats();
  EXPECT_EQ(stats.steps_queued, 0u);
  EXPECT_EQ(stats.sessions_live, 3u);      // the session stays for whoever comes next
  EXPECT_EQ(stats.tokens_committed, 4u);   // 1 + 2 + 1: what was dropped never ran
}

TEST(ShardHostTest, AFailedStepIsRolledBackAndCanBeSentAgain) {
  const struct {
    FakeFault::Kind kind;
    Reason reason;
    Detail detail;
  } rows[] = {{FakeFault::Kind::kRolledBack, Reason::kExecFailed, Detail::kNone},
              {FakeFault::Kind::kAskedTooMuch, Reason::kBadRequest, Detail::kLimit}};  // the request itself makes it impossible
  for (const auto& row : rows) {
    TestShard shard;
    TestSession session(shard.link(), shard.description(), 1);
    ASSERT_TRUE(session.Open());
    session.MustPrefill({1, 2}, RowsWanted::kNone);
    shard.engine().Inject({.kind = row.kind});
    Step step = session.PrefillStep({3}, RowsWanted::kLast, Greedy());
    Refusal refusal = std::get<Refusal>(session.Send(step).get());
    EXPECT_EQ(refusal.reason, row.reason);
    EXPECT_EQ(refusal.detail, row.detail);
    ASSERT_TRUE(refusal.session.has_value());
    EXPECT_EQ(refusal.session->past_len, PastLen(2));
    StepResult result = std::get<StepResult>(session.Send(std::move(step)).get());
    EXPECT_EQ(result.past_len, PastLen(3));
    EXPECT_EQ(result.sampled.at(0).token, FakeAnswer(shard.model(), std::vector<Token>{1, 2, 3}, 1, Greedy()).at(0));
  }
}

TEST(ShardHostTest, OnlyTheGuiltyStepOfABatchIsLost) {
  for (FakeFault::Kind kind : {FakeFault::Kind::kLost, FakeFault::Kind::kNonFinite}) {
    TestShard shard;
    TestSession good(shard.link(), shard.description(), 1), bad(shard.link(), shard.description(), 2), busy(shard.link(), shard.description(), 3);
    for (TestSession* session : {&good, &bad, &busy}) {
      ASSERT_TRUE(session->Open());
      session->MustPrefill({1, 2}, RowsWanted::kLast, Greedy());
    }
    shard.engine_gate().Close();
    std::future<Reply<StepResult>> chunk = busy.Prefill({5, 6}, RowsWanted::kNone);
    shard.engine_gate().WaitForCall();
    std::future<Reply<StepResult>> good_step = good.Decode(7), bad_step = bad.Decode(7);
    shard.engine().Inject({.kind = kind, .sequence = SequenceId(1)});
    shard.engine_gate().Open();
    EXPECT_TRUE(std::holds_alternative<StepResult>(chunk.get()));
    EXPECT_TRUE(std::holds_alternative<StepResult>(good_step.get()));
    Refusal refusal = std::get<Refusal>(bad_step.get());
    EXPECT_EQ(refusal.reason, Reason::kCacheMiss);
    EXPECT_EQ(refusal.detail, Detail::kLost);
    EXPECT_EQ(shard.Stats().sessions_lost, 1u);
    // Its place is clean for the next one.
    TestSession next(shard.link(), shard.description(), 4);
    ASSERT_TRUE(next.Open());
    EXPECT_EQ(next.MustPrefill({1, 2}, RowsWanted::kLast, Greedy()).sampled.at(0).token, FakeAnswer(shard.model(), std::vector<Token>{1, 2}, 1, Greedy()).at(0));
    shard.host().Inspect([](ShardCore& core) { core.CheckInvariants(); });
  }
}

TEST(ShardHostTest, ATruncationThatIsNotProvenLosesTheSession) {
  TestShard shard;
  TestSession session(shard.link(), shard.description(), 1);
  ASSERT_TRUE(session.Open());
  session.MustPrefill({1, 2, 3, 4}, RowsWanted::kNone);
  shard.engine().Inject({.kind = FakeFault::Kind::kTruncateFails});
  session.GoBack(2);
  const uint64_t calls = shard.engine().counts().runs;
  Refusal refusal = std::get<Refusal>(session.Prefill({9}, RowsWanted::kNone).get());
  EXPECT_EQ(refusal.detail, Detail::kLost);
  EXPECT_EQ(shard.engine().counts().runs, calls);  // nothing runs on cells that may be wrong
}

TEST(ShardHostTest, ARowThatOverflowedLeavesNoWorker) {
  TestShard shard;
  TestSession session(shard.link(), shard.description(), 1);
  ASSERT_TRUE(session.Open());
  session.MustPrefill({1, 2}, RowsWanted::kNone);
  shard.engine_gate().OverflowRows();
  Step step = session.PrefillStep({3}, RowsWanted::kLast);
  step.logits_wanted = true;
  Refusal refusal = std::get<Refusal>(session.Send(std::move(step)).get());
  EXPECT_EQ(refusal.reason, Reason::kCacheMiss);
  EXPECT_EQ(refusal.detail, Detail::kLost);
  EXPECT_EQ(shard.Stats().sessions_lost, 1u);
}

TEST(ShardHostTest, SamplingStaysUntilItChangesAndOnlyACommitChangesIt) {
  TestShard shard;
  TestSession session(shard.link(), shard.description(), 1);
  ASSERT_TRUE(session.Open());
  // Never sent: nothing is sampled.
  EXPECT_TRUE(session.MustPrefill({1, 2}, RowsWanted::kLast).sampled.empty());
  EXPECT_EQ(session.MustPrefill({3}, RowsWanted::kLast, Greedy()).sampled.at(0).token, FakeAnswer(shard.model(), std::vector<Token>{1, 2, 3}, 1, Greedy())[0]);
  SamplingParams random = Greedy();
  random.temperature = 1;
  random.seed = 7;
  // A failed step leaves the old parameters in force.
  shard.engine().Inject({.kind = FakeFault::Kind::kRolledBack});
  Step failed = session.PrefillStep({4}, RowsWanted::kLast, random);
  EXPECT_EQ(std::get<Refusal>(session.Send(std::move(failed)).get()).reason, Reason::kExecFailed);
  EXPECT_EQ(session.MustPrefill({4}, RowsWanted::kLast).sampled.at(0).token, FakeAnswer(shard.model(), std::vector<Token>{1, 2, 3, 4}, 1, Greedy())[0]);
  // A next owner of the sequence starts without any.
  shard.Release(session.key());
  TestSession next(shard.link(), shard.description(), 2);
  ASSERT_TRUE(next.Open());
  EXPECT_TRUE(next.MustPrefill({1}, RowsWanted::kLast).sampled.empty());
}

TEST(ShardHostTest, AResendIsNotCheckedAgain) {
  TestShard shard;
  TestSession session(shard.link(), shard.description(), 1);
  ASSERT_TRUE(session.Open());
  const Step step = session.PrefillStep({1, 2}, RowsWanted::kLast, Greedy());
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(std::holds_alternative<StepResult>(session.Send(step).get()));
  EXPECT_EQ(shard.engine_gate().sampling_checks, 1);
}

TEST(ShardHostTest, ABadGrammarIsRefusedAtItsPlace) {
  TestShard shard;
  TestSession session(shard.link(), shard.description(), 1);
  ASSERT_TRUE(session.Open());
  SamplingParams bad = Greedy();
  bad.grammar = std::string(kFakeBadGrammar);
  Refusal refusal = std::get<Refusal>(session.Send(session.PrefillStep({1}, RowsWanted::kLast, bad)).get());
  EXPECT_EQ(refusal.reason, Reason::kBadRequest);
  EXPECT_EQ(refusal.detail, Detail::kLimit);
  // The fence comes first.
  Step stale = session.PrefillStep({1}, RowsWanted::kLast, bad);
  TestSession newer(shard.link(), shard.description(), 1, Epoch(2));
  ASSERT_TRUE(newer.Open());
  EXPECT_EQ(std::get<Refusal>(session.Send(std::move(stale)).get()).reason, Reason::kEpochStale);
}

TEST(ShardHostTest, RefusesAnotherModelAndAnotherRange) {
  TestShard shard;
  OpenRequest request;
  request.key = {RandomId<SessionId>(), Epoch(1)};
  request.model_root = RandomId<Sha256Digest>();
  request.range = shard.description().range;
  EXPECT_EQ(std::get<Refusal>(shard.Open(request)).reason, Reason::kModelMismatch);
  request.model_root = shard.description().model_root;
  request.range.end -= 1;
  Refusal refusal = std::get<Refusal>(shard.Open(request));
  EXPECT_EQ(refusal.reason, Reason::kRangeMismatch);
  EXPECT_NE(refusal.message.find(shard.description().range.Text()), std::string::npos) << refusal.message;
}

TEST(ShardHostTest, SessionsExpireByTheClockItIsGiven) {
  ManualClock clock;
  TestShard shard({.ttl_seconds = 10}, &clock);
  TestSession session(shard.link(), shard.description(), 1);
  ASSERT_TRUE(session.Open());
  session.MustPrefill({1, 2}, RowsWanted::kNone);
  shard.host().Inspect([&](ShardCore&) { clock.Advance(seconds(9)); });
  EXPECT_EQ(shard.Stats().sessions_live, 1u);
  shard.host().Inspect([&](ShardCore&) { clock.Advance(seconds(2)); });
  EXPECT_EQ(shard.Stats().sessions_live, 0u);
  EXPECT_EQ(std::get<Refusal>(session.Prefill({3}, RowsWanted::kNone).get()).detail, Detail::kEvictedTtl);
}

TEST(ShardHostTest, ADrainRefusesOpenLetsSessionsFinishAndThenEnds) {
  TestShard shard;
  TestSession session(shard.link(), shard.description(), 1);
  ASSERT_TRUE(session.Open());
  session.MustPrefill({1, 2}, RowsWanted::kNone);
  shard.host().BeginDrain(/*then_end=*/true);
  EXPECT_EQ(shard.description().state, ShardState::kDraining);
  TestSession late(shard.link(), shard.description(), 2);
  Reply<OpenReply> refused = late.TryOpen();
  EXPECT_EQ(std::get<Refusal>(refused).reason, Reason::kDraining);
  EXPECT_EQ(session.MustPrefill({3}, RowsWanted::kNone).past_len, PastLen(3));  // it is in the middle of its answer
  EXPECT_FALSE(shard.host().drained());
  shard.Release(session.key());
  shard.WaitFor([&] { return shard.host().drained(); });
  EXPECT_EQ(std::get<Refusal>(session.Prefill({4}, RowsWanted::kNone).get()).reason, Reason::kCacheMiss);
}

TEST(ShardHostTest, ADrainEndsSessionsThatAreQuiet) {
  ManualClock clock;
  TestShard shard({}, &clock);
  TestSession session(shard.link(), shard.description(), 1);
  ASSERT_TRUE(session.Open());
  session.MustPrefill({1, 2}, RowsWanted::kNone);
  shard.host().BeginDrain(/*then_end=*/true);
  shard.host().Inspect([&](ShardCore&) { clock.Advance(seconds(4)); });
  EXPECT_FALSE(shard.host().drained());
  shard.host().Inspect([&](ShardCore&) { clock.Advance(seconds(2)); });
  shard.WaitFor([&] { return shard.host().drained(); });
  Refusal refusal = std::get<Refusal>(session.Prefill({3}, RowsWanted::kNone).get());
  EXPECT_EQ(refusal.reason, Reason::kCacheMiss);
  EXPECT_EQ(refusal.detail, Detail::kDrained);
}

TEST(ShardHostTest, AnEngineThatLiesPoisonsTheShard) {
  TestShard shard;
  TestSession session(shard.link(), shard.description(), 1), other(shard.link(), shard.description(), 2);
  ASSERT_TRUE(session.Open());
  ASSERT_TRUE(other.Open());
  shard.engine_gate().LoseTokens();
  ::testing::internal::CaptureStderr();
  Refusal refusal = std::get<Refusal>(session.Prefill({1, 2, 3}, RowsWanted::kNone).get());
  EXPECT_EQ(refusal.reason, Reason::kPoisoned);
  EXPECT_EQ(std::get<Refusal>(other.Prefill({1}, RowsWanted::kNone).get()).reason, Reason::kPoisoned);
  EXPECT_EQ(std::get<Refusal>(TestSession(shard.link(), shard.description(), 3).TryOpen()).reason, Reason::kPoisoned);
  shard.WaitFor([&] { return !shard.host().trouble().ok(); });
  std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("prefill " + IdPrefix(session.key().session) + " epoch=1 step=1 start=0 tokens=3"), std::string::npos) << log;
  EXPECT_EQ(log.find(session.key().session.Hex()), std::string::npos);
  EXPECT_EQ(shard.description().state, ShardState::kPoisoned);
}

TEST(ShardHostTest, AnEngineThatKeepsCellsPoisonsTheShard) {
  TestShard shard;
  TestSession session(shard.link(), shard.description(), 1), other(shard.link(), shard.description(), 2);
  ASSERT_TRUE(session.Open());
  ASSERT_TRUE(other.Open());
  session.MustPrefill({1, 2, 3}, RowsWanted::kNone);
  shard.engine_gate().KeepCells();
  ::testing::internal::CaptureStderr();
  shard.Release(session.key());
  EXPECT_EQ(std::get<Refusal>(other.Prefill({1}, RowsWanted::kNone).get()).reason, Reason::kPoisoned);
  shard.WaitFor([&] { return !shard.host().trouble().ok(); });
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("still holds sequence 0"), std::string::npos);
}

TEST(ShardHostTest, HealthHearsOfPoisonBeforeAnybodyElse) {
  std::future<Reply<StepResult>> step;
  std::optional<bool> answered_before;
  TestShard shard({}, nullptr, TestShard::WholeModel(), [&](ShardState state) {
    if (state != ShardState::kPoisoned || answered_before) return;
    answered_before = !step.valid() || step.wait_for(seconds(0)) == std::future_status::ready;
  });
  TestSession session(shard.link(), shard.description(), 1);
  ASSERT_TRUE(session.Open());
  shard.engine_gate().Close();
  step = session.Prefill({1, 2, 3}, RowsWanted::kNone);
  shard.engine_gate().WaitForCall();
  shard.engine_gate().LoseTokens();
  ::testing::internal::CaptureStderr();
  shard.engine_gate().Open();
  EXPECT_EQ(std::get<Refusal>(step.get()).reason, Reason::kPoisoned);
  EXPECT_FALSE(shard.host().trouble().ok());
  ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(answered_before, false);
}

TEST(ShardHostTest, SaysWhyThereIsNoEngine) {
  SystemClock clock;
  ShardHost host({}, ShardDescription(), [] { return Result<std::unique_ptr<Engine>>(BadModel("no such shard")); }, clock);
  EXPECT_EQ(host.WaitLoaded().code(), StatusCode::kBadModel);
  std::promise<Reply<OpenReply>> opened;
  host.Open(OpenRequest(), [&](Reply<OpenReply> reply) { opened.set_value(std::move(reply)); });
  EXPECT_EQ(std::get<Refusal>(opened.get_future().get()).reason, Reason::kDraining);
}

TEST(ShardHostTest, RefusesWhileItLoads) {
  SystemClock clock;
  std::promise<void> go_on;
  ShardHost host({}, ShardDescription(), [&] {
    go_on.get_future().wait();
    return Result<std::unique_ptr<Engine>>(std::make_unique<FakeEngine>(FakeEngineOptions()));
  }, clock);
  EXPECT_EQ(host.description().state, ShardState::kStarting);
  std::promise<Reply<OpenReply>> opened;
  host.Open(OpenRequest(), [&](Reply<OpenReply> reply) { opened.set_value(std::move(reply)); });
  Refusal refusal = std::get<Refusal>(opened.get_future().get());
  EXPECT_EQ(refusal.reason, Reason::kDraining);
  EXPECT_NE(refusal.message.find("starting"), std::string::npos);
  EXPECT_TRUE(refusal.retry_after.has_value());
  go_on.set_value();
  EXPECT_TRUE(host.WaitLoaded().ok());
}

TEST(ShardHostTest, AnswersEverybodyWhenItStops) {
  TestShard shard;
  TestSession session(shard.link(), shard.description(), 1), queued(shard.link(), shard.description(), 2);
  ASSERT_TRUE(session.Open());
  ASSERT_TRUE(queued.Open());
  shard.engine_gate().Close();
  std::future<Reply<StepResult>> running = session.Prefill({1, 2}, RowsWanted::kNone);
  shard.engine_gate().WaitForCall();
  std::future<Reply<StepResult>> waiting = queued.Prefill({1}, RowsWanted::kNone);
  std::thread stop([&] { shard.host().Stop(); });
  // Asked without waiting: an Open that is earlier than the stop is answered only after the call that runs.
  std::atomic<bool> stopping{false};
  shard.WaitFor([&] {
    queued.AskOpen([&stopping](const Reply<OpenReply>& reply) {
      const auto* refusal = std::get_if<Refusal>(&reply);
      if (refusal != nullptr && refusal->message.find("stopping") != std::string::npos) stopping = true;
    });
    return stopping.load();
  });
  shard.engine_gate().Open();
  stop.join();
  EXPECT_TRUE(std::holds_alternative<StepResult>(running.get()));  // a call that runs is finished
  EXPECT_EQ(std::get<Refusal>(waiting.get()).reason, Reason::kDraining);
}

TEST(ShardHostTest, PublishesWhatTheEngineReallyHas) {
  FakeEngineOptions engine;
  engine.sessions_max = 3;
  engine.context_tokens = 256;
  engine.budget_tokens = 300;
  TestShard shard({.sessions_max = 5, .context_tokens = 100, .budget_tokens = 450}, nullptr, engine);
  const ShardLimits limits = shard.description().limits;
  EXPECT_EQ(limits.sessions_max, 3u);
  EXPECT_EQ(limits.context_tokens, 100u);
  EXPECT_EQ(limits.budget_tokens, 300u);
  EXPECT_EQ(limits.window_steps, 4u);
  EXPECT_GT(limits.frame_bytes_max, 0u);
  EXPECT_EQ(shard.description().state, ShardState::kServing);
}

TEST(InProcessLinkTest, APassedDeadlineIsATransportFault) {
  TestShard shard;
  TestSession session(shard.link(), shard.description(), 1);
  ASSERT_TRUE(session.Open());
  shard.engine_gate().Close();
  std::future<Reply<StepResult>> step = SendOver(shard.link(), session.PrefillStep({1}, RowsWanted::kNone), std::chrono::steady_clock::now());
  EXPECT_TRUE(std::holds_alternative<TransportFault>(step.get()));
  shard.engine_gate().Open();
  // The outcome was unknown; the same step again is joined or replayed.
  EXPECT_TRUE(std::holds_alternative<StepResult>(session.Send(session.PrefillStep({1}, RowsWanted::kNone)).get()));
}

}  // namespace
}  // namespace meshnet
