// What the shard protocol promises of a Forward stream itself: few messages, a bound for what its reader does not take, and no session ends with it.
#include <gtest/gtest.h>

#include "conformance_bed.h"

namespace meshnet::conformance {
namespace {

TEST_F(OwnWorkerTest, TheAnswersOfOneEngineCallShareAMessage) {
  Connect([](FakeWorkerFlags& flags) { flags.worker.hot_kv = {.sessions_max = 64, .context_tokens = 64, .budget_tokens = 64 * 64, .ttl_seconds = 100}, flags.chunk_rows_max = 64; });
  std::vector<Session> sessions;
  pb::ForwardRequest message;
  for (int i = 0; i < 64; ++i) {
    sessions.push_back(NewSession());
    ASSERT_TRUE(sessions.back().Open().ok());
    ASSERT_EQ(sessions.back().MustForward(*stream_, sessions.back().Prefill({1, 2})), "OK");
    pb::Step step = sessions.back().Decode(3);
    step.set_request_id(stream_->NextId());
    *message.add_steps() = step;
  }
  const uint64_t runs = engine_->counts().runs, messages = stream_->messages();
  stream_->SendMessage(message);
  for (const pb::Step& step : message.steps()) EXPECT_EQ(TextOf(*stream_->Answer(step.request_id())), "OK");
  EXPECT_EQ(engine_->counts().runs, runs + 1);
  EXPECT_EQ(stream_->messages(), messages + 1);
}

TEST_F(OwnWorkerTest, ARecordThatIsAskedForTooOftenAtOnceCutsTheStreamOff) {
  Connect([](FakeWorkerFlags& flags) { flags.model.vocabulary_size = 1 << 16; });
  Session session = NewSession();
  ASSERT_TRUE(session.Open().ok());
  pb::Step step = session.Prefill(std::vector<Token>(16, 1));
  step.set_rows(pb::ROWS_WANTED_ALL);
  step.set_logits_wanted(true);
  ASSERT_EQ(session.MustForward(*stream_, step), "OK");
  constexpr size_t kTimes = 64;  // of 4 MiB
  Stream greedy(*client_);
  pb::ForwardRequest message;
  for (size_t i = 0; i < kTimes; ++i) {
    step.set_request_id(greedy.NextId());
    *message.add_steps() = step;
  }
  greedy.SendMessage(message);
  // Once all are counted the worker is about to answer them; it has when it answers somebody else the next time.
  TestShard::WaitFor([&] { return client_->Stats().reply.replays() == kTimes; });
  ASSERT_TRUE(client_->Stats().ok());
  size_t answered = 0;
  for (const pb::Step& one : message.steps()) answered += greedy.Answer(one.request_id()) ? 1 : 0;
  ASSERT_LT(answered, kTimes);
  EXPECT_EQ(greedy.End().error_code(), grpc::StatusCode::CANCELLED);
  step.set_request_id(0);
  EXPECT_EQ(TextOf(*stream_->Ask(step)), "REPLAYED") << "the record stays";
}

TEST_F(ConformanceTest, AStreamThatEndsEndsNoSession) {
  Connect();
  Session session = NewSession();
  ASSERT_TRUE(session.Open().ok());
  {
    Stream stream(*client_);
    ASSERT_EQ(session.MustForward(stream, session.Prefill({1, 2})), "OK");
    EXPECT_TRUE(stream.Finish().ok());  // half-closed: what was asked is answered, then it ends well
  }
  { Stream broken(*client_); }
  EXPECT_EQ(session.MustForward(*stream_, session.Decode(3)), "OK");
}

}  // namespace
}  // namespace meshnet::conformance
