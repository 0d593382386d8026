// What the shard protocol promises, asked over the wire: every row of the error table, replay, credit, fencing, cancel, health.
// `--target HOST:PORT` asks any worker; without it each test starts one in this process, on the fake engine, and may break it.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <deque>
#include <future>
#include <limits>

#include "conformance_bed.h"

namespace meshnet::conformance {
namespace {

TEST_F(ConformanceTest, DescribesItself) {
  Connect();
  EXPECT_EQ(shard_.protocol_major(), 1u);
  EXPECT_EQ(shard_.incarnation().size(), 16u);
  EXPECT_EQ(shard_.model_root().size(), 32u);
  EXPECT_EQ(shard_.range_digest().size(), 32u);
  EXPECT_LT(shard_.range().begin(), shard_.range().end());
  EXPECT_LE(shard_.range().end(), shard_.layer_count());
  EXPECT_GT(shard_.boundary_width(), 0u);
  EXPECT_GT(shard_.vocabulary_size(), 0u);
  EXPECT_GE(shard_.limits().window_steps(), 1u);
  EXPECT_GE(shard_.limits().frame_bytes_max(), uint64_t{shard_.limits().chunk_rows_max()} * shard_.boundary_width() * 4);
  ASSERT_EQ(shard_.encodings_size(), 1);
  EXPECT_EQ(shard_.encodings(0), pb::ENCODING_F32);
}

TEST_F(ConformanceTest, RefusesAnotherProtocolVersion) {
  Connect();
  Outcome<pb::DescribeReply> described = client_->Describe(2, 0);
  EXPECT_EQ(described.Text(), "PROTOCOL_MISMATCH");
  EXPECT_EQ(described.status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_TRUE(client_->Describe(1, 99).ok());  // the answer shows both sides what differs
  pb::OpenRequest request = NewSession().OpenRequest();
  request.set_protocol_minor(99);
  EXPECT_EQ(client_->Open(request).Text(), "PROTOCOL_MISMATCH");
  request.clear_protocol_minor();
  request.set_protocol_major(0);
  EXPECT_EQ(client_->Open(request).Text(), "PROTOCOL_MISMATCH");
}

TEST_F(ConformanceTest, RefusesAnotherModelOrRange) {
  Connect();
  pb::OpenRequest request = NewSession().OpenRequest();
  request.set_model_root(std::string(32, 'x'));
  Outcome<pb::OpenReply> open = client_->Open(request);
  EXPECT_EQ(open.Text(), "MODEL_MISMATCH");
  EXPECT_EQ(open.status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(open.error->retry(), pb::OTHER_WORKER);
  request = NewSession().OpenRequest();
  request.mutable_range()->set_end(request.range().end() + 1);
  EXPECT_EQ(client_->Open(request).Text(), "RANGE_MISMATCH");
}

TEST_F(ConformanceTest, OpenIsIdempotentAndTheQuery) {
  Connect();
  Session session = NewSession();
  Outcome<pb::OpenReply> first = session.Open();
  ASSERT_TRUE(first.ok()) << first.Text();
  EXPECT_EQ(first.reply.past_len(), 0u);
  EXPECT_EQ(first.reply.next_step(), 1u);
  EXPECT_EQ(first.reply.credit().step_seq_max(), shard_.limits().window_steps());
  EXPECT_EQ(first.reply.reserved_tokens(), 64u);
  ASSERT_EQ(session.MustForward(*stream_, session.Prefill({1, 2, 3})), "OK");
  Outcome<pb::OpenReply> again = session.Open();
  EXPECT_EQ(again.reply.past_len(), 3u);
  EXPECT_EQ(again.reply.next_step(), 2u);
  EXPECT_FALSE(again.reply.has_superseded_epoch());
  EXPECT_EQ(client_->Release(session.ref()).reply.outcome(), pb::RELEASED);
}

TEST_F(ConformanceTest, TheCacheSaltBelongsToTheSession) {
  Connect();
  Session session = NewSession();
  session.cache_salt = "tenant a";
  ASSERT_TRUE(session.Open().ok());
  ASSERT_EQ(session.MustForward(*stream_, session.Prefill({1, 2, 3})), "OK");
  const std::string before = Observe(session);
  for (const std::string& salt : {std::string("tenant b"), std::string()}) {
    pb::OpenRequest request = session.OpenRequest();
    request.set_cache_salt(salt);
    Outcome<pb::OpenReply> open = client_->Open(request);
    EXPECT_EQ(open.Text(), "BAD_REQUEST");
    EXPECT_EQ(open.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(Observe(session), before);
    // The same tokens under another salt are another prefix.
    Session stranger = session;
    stranger.cache_salt = salt;
    EXPECT_EQ(Refused(session, stranger.Decode(4)), "CACHE_MISS/DIGEST_MISMATCH");
  }
  EXPECT_EQ(session.MustForward(*stream_, session.Decode(4)), "OK");
}

TEST_F(ConformanceTest, RefusesMalformedOpens) {
  Connect();
  struct Row {
    const char* name;
    std::function<void(pb::OpenRequest&)> spoil;
    std::string text;
  } rows[] = {
      {"no ref", [](auto& r) { r.clear_ref(); }, "BAD_REQUEST/SHAPE"},
      {"epoch 0", [](auto& r) { r.mutable_ref()->set_route_epoch(0); }, "BAD_REQUEST/SHAPE"},
      {"long id", [](auto& r) { r.mutable_ref()->set_route_session_id(std::string(1000, 'x')); }, "BAD_REQUEST/SHAPE"},
      {"no root", [](auto& r) { r.clear_model_root(); }, "BAD_REQUEST/SHAPE"},
      {"empty range", [](auto& r) { r.clear_range(); }, "BAD_REQUEST/SHAPE"},
      {"long salt", [](auto& r) { r.set_cache_salt(std::string(65, 's')); }, "BAD_REQUEST/LIMIT"},
      {"too large a reservation", [](auto& r) { r.set_reserve_tokens(1u << 31); }, "BAD_REQUEST/LIMIT"},
  };
  const uint32_t live = client_->Stats().reply.sessions_live();
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    pb::OpenRequest request = NewSession().OpenRequest();
    row.spoil(request);
    Outcome<pb::OpenReply> open = client_->Open(request);
    EXPECT_EQ(open.Text(), row.text);
    EXPECT_EQ(open.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  }
  EXPECT_EQ(client_->Stats().reply.sessions_live(), live);
}

TEST_F(ConformanceTest, RefusesStepsThatDoNotFitTheSession) {
  Connect();
  Session session = NewSession();
  ASSERT_TRUE(session.Open().ok());
  ASSERT_EQ(session.MustForward(*stream_, session.Prefill({1, 2, 3})), "OK");
  struct Row {
    const char* name;
    std::function<void(pb::Step&)> spoil;
    std::string text;
    int code;
  } rows[] = {
      {"another incarnation", [](auto& s) { s.set_incarnation(std::string(16, 'x')); }, "CACHE_MISS/INCARNATION", 10},
      {"no such session", [](auto& s) { s.mutable_ref()->set_route_session_id(std::string(16, 'x')); }, "CACHE_MISS/NO_SESSION", 10},
      {"an epoch that was never opened", [](auto& s) { s.mutable_ref()->set_route_epoch(7); }, "CACHE_MISS/NO_SESSION", 10},
      {"start behind the end", [](auto& s) { s.set_start_pos(4); }, "CACHE_MISS/PAST_MISMATCH", 10},
      {"decode before the end", [](auto& s) { s.set_kind(pb::STEP_KIND_DECODE), s.set_start_pos(2); }, "CACHE_MISS/PAST_MISMATCH", 10},
      {"another prefix", [](auto& s) { s.set_prefix_digest(std::string(16, 'x')); }, "CACHE_MISS/DIGEST_MISMATCH", 10},
      {"a gap", [](auto& s) { s.set_step_seq(9); }, "STEP_GAP", 11},
      {"another step under a number that was taken", [](auto& s) { s.set_step_seq(1), s.set_ack_seq(1); }, "STEP_CONFLICT", 6},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    pb::Step step = session.Decode(5);
    row.spoil(step);
    EXPECT_EQ(Refused(session, step), row.text);
    EXPECT_EQ(code_, row.code);
  }
  EXPECT_EQ(session.MustForward(*stream_, session.Decode(5)), "OK");
}

TEST_F(ConformanceTest, RefusesStepsThatAreMalformed) {
  Connect();
  Session session = NewSession();
  ASSERT_TRUE(session.Open().ok());
  const Token beyond = static_cast<Token>(shard_.vocabulary_size());
  const int rows_max = static_cast<int>(shard_.limits().chunk_rows_max());
  struct Row {
    const char* name;
    std::function<void(pb::Step&)> spoil;
    std::string text;
  } rows[] = {
      {"no ref", [](auto& s) { s.clear_ref(); }, "BAD_REQUEST/SHAPE"},
      {"short incarnation", [](auto& s) { s.set_incarnation("x"); }, "BAD_REQUEST/SHAPE"},
      {"step_seq 0", [](auto& s) { s.set_step_seq(0); }, "BAD_REQUEST/SHAPE"},
      {"kind unknown", [](auto& s) { s.set_kind(static_cast<pb::StepKind>(99)); }, "BAD_REQUEST/SHAPE"},
      {"rows unspecified", [](auto& s) { s.clear_rows(); }, "BAD_REQUEST/SHAPE"},
      {"start_pos missing", [](auto& s) { s.clear_start_pos(); }, "BAD_REQUEST/SHAPE"},
      {"no tokens", [](auto& s) { s.clear_tokens(), s.clear_input(); }, "BAD_REQUEST/"},
      {"too many tokens", [=](auto& s) { for (int i = 0; i < rows_max; ++i) s.add_tokens(1); }, "BAD_REQUEST/LIMIT"},
      {"decode of two", [](auto& s) { s.set_kind(pb::STEP_KIND_DECODE), s.add_tokens(1); }, "BAD_REQUEST/SHAPE"},
      {"token beyond the vocabulary", [=](auto& s) { s.set_tokens(0, beyond); }, "BAD_REQUEST/TOKEN"},
      {"negative token", [](auto& s) { s.set_tokens(0, -1); }, "BAD_REQUEST/TOKEN"},
      {"acknowledges what never was", [](auto& s) { s.set_ack_seq(5); }, "BAD_REQUEST/LIMIT"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    pb::Step step = session.Prefill({1});
    row.spoil(step);
    EXPECT_EQ(Refused(session, step).substr(0, row.text.size()), row.text);
    EXPECT_EQ(code_, 3);
    EXPECT_EQ(error_.retry(), pb::NEVER);
  }
  if (shard_.range().begin() == 0) {
    pb::Step step = session.Prefill({1});
    step.mutable_input()->set_width(shard_.boundary_width());
    EXPECT_EQ(Refused(session, step), "BAD_REQUEST/SHAPE");
  }
  EXPECT_EQ(session.MustForward(*stream_, session.Prefill({1})), "OK");  // the stream and the session live on
}

TEST_F(OwnWorkerTest, RefusesFramesThatAreMalformed) {
  Connect([](FakeWorkerFlags& flags) { flags.range = {2, 4}; });
  Session session = NewSession();
  ASSERT_TRUE(session.Open().ok());
  const float nan = std::numeric_limits<float>::quiet_NaN();
  struct Row {
    const char* name;
    std::function<void(pb::Step&)> spoil;
    std::string text;
  } rows[] = {
      {"no frame", [](auto& s) { s.clear_input(); }, "BAD_REQUEST/SHAPE"},
      {"rows unlike tokens", [](auto& s) { s.mutable_input()->set_rows(3); }, "BAD_REQUEST/SHAPE"},
      {"rows * width overflows", [](auto& s) { s.mutable_input()->set_rows(0xffffffff); }, "BAD_REQUEST/SHAPE"},
      {"payload too short", [](auto& s) { s.mutable_input()->mutable_payload()->resize(4); }, "BAD_REQUEST/SHAPE"},
      {"payload too long", [](auto& s) { s.mutable_input()->mutable_payload()->append(4, '\0'); }, "BAD_REQUEST/SHAPE"},
      {"layout", [](auto& s) { s.mutable_input()->set_layout_version(2); }, "BAD_REQUEST/ENCODING"},
      {"an encoding of tomorrow", [](auto& s) { s.mutable_input()->set_encoding(static_cast<pb::Encoding>(99)); }, "BAD_REQUEST/ENCODING"},
      {"f16", [](auto& s) { s.mutable_input()->set_encoding(pb::ENCODING_F16); }, "BAD_REQUEST/ENCODING"},
      {"not finite", [=](auto& s) { std::memcpy(s.mutable_input()->mutable_payload()->data(), &nan, 4); }, "BAD_REQUEST/NONFINITE"},
      {"logits before the tail", [](auto& s) { s.set_logits_wanted(true); }, "BAD_REQUEST/SHAPE"},
      {"sampling before the tail", [](auto& s) { *s.mutable_sampling() = GreedySampling(); }, "BAD_REQUEST/SHAPE"},
      {"larger than frame_bytes_max", [this](auto& s) { s.mutable_input()->mutable_payload()->resize(shard_.limits().frame_bytes_max()); }, "BAD_REQUEST/LIMIT"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    pb::Step step = session.Prefill({1, 2});
    row.spoil(step);
    EXPECT_EQ(Refused(session, step), row.text);
  }
  pb::Step wide = session.Prefill({1, 2});
  wide.mutable_input()->set_width(shard_.boundary_width() * 2);
  EXPECT_EQ(Refused(session, wide), "BOUNDARY_MISMATCH");
  EXPECT_EQ(code_, 9);
  EXPECT_EQ(error_.retry(), pb::OTHER_WORKER);
  EXPECT_EQ(session.MustForward(*stream_, session.Prefill({1, 2})), "OK");
}

TEST_F(OwnWorkerTest, AMessageBeyondAllBoundsEndsTheStreamAndNothingElse) {
  Connect();
  Session session = NewSession();
  ASSERT_TRUE(session.Open().ok());
  ASSERT_EQ(session.MustForward(*stream_, session.Prefill({1, 2})), "OK");
  pb::ForwardRequest message;
  *message.add_steps() = session.Prefill({3});
  message.mutable_steps(0)->mutable_sampling()->set_grammar(std::string(64u << 20, 'x'));
  Stream other(*client_);
  other.SendMessage(message);
  EXPECT_EQ(other.End().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(session.MustForward(*stream_, session.Prefill({3})), "OK");
}

TEST_F(OwnWorkerTest, RefusesBadSampling) {
  Connect();
  Session session = NewSession();
  ASSERT_TRUE(session.Open().ok());
  pb::Step step = session.Prefill({1});
  *step.mutable_sampling() = GreedySampling();
  step.mutable_sampling()->set_grammar(std::string(kFakeBadGrammar));
  EXPECT_EQ(Refused(session, step), "BAD_REQUEST/LIMIT");
  step.mutable_sampling()->set_grammar(std::string(1 << 20, '('));
  EXPECT_EQ(Refused(session, step), "BAD_REQUEST/LIMIT");
  *step.mutable_sampling() = GreedySampling();
  step.mutable_sampling()->set_top_p(std::numeric_limits<float>::quiet_NaN());
  EXPECT_EQ(Refused(session, step), "BAD_REQUEST/LIMIT");
  *step.mutable_sampling() = GreedySampling();
  std::optional<pb::StepAnswer> answer = stream_->Ask(step);
  ASSERT_TRUE(answer && answer->has_result()) << TextOf(*answer);
  ASSERT_EQ(answer->result().sampled_size(), 1);
  SamplingParams greedy;
  greedy.temperature = 0;
  EXPECT_EQ(answer->result().sampled(0).token(), FakeAnswer(FakeModel(), std::vector<Token>{1}, 1, greedy).at(0));
}

TEST_F(ConformanceTest, ChecksInTheFixedOrder) {
  Connect();
  Session old = NewSession();
  ASSERT_TRUE(old.Open().ok());
  Session session = old.Rival(2);
  ASSERT_TRUE(session.Open().ok());
  ASSERT_EQ(session.MustForward(*stream_, session.Prefill({1, 2})), "OK");
  // Everything is wrong at once; mending one thing after the other shows what is looked at next.
  pb::Step step = session.Prefill({-1});
  step.mutable_ref()->set_route_epoch(1);
  step.set_incarnation(std::string(16, 'x'));
  step.set_step_seq(9);
  step.set_prefix_digest(std::string(16, 'x'));
  step.set_start_pos(7);
  EXPECT_EQ(Refused(session, step), "EPOCH_STALE");
  step.mutable_ref()->set_route_epoch(2);
  EXPECT_EQ(Refused(session, step), "CACHE_MISS/INCARNATION");
  step.set_incarnation(session.incarnation());
  EXPECT_EQ(Refused(session, step), "STEP_GAP");
  step.set_step_seq(session.next());
  EXPECT_EQ(Refused(session, step), "BAD_REQUEST/TOKEN");
  step.set_tokens(0, 3);
  EXPECT_EQ(Refused(session, step), "CACHE_MISS/PAST_MISMATCH");
  step.set_start_pos(2);
  EXPECT_EQ(Refused(session, step), "CACHE_MISS/DIGEST_MISMATCH");
  EXPECT_EQ(session.MustForward(*stream_, session.Prefill({3})), "OK");
}

TEST_F(ConformanceTest, ALostReplyIsReplayed) {
  Connect();
  Session session = NewSession();
  ASSERT_TRUE(session.Open().ok());
  pb::Step step = session.Prefill({1, 2, 3});
  if (shard_.range().end() == shard_.layer_count()) *step.mutable_sampling() = GreedySampling();
  const uint64_t committed = client_->Stats().reply.steps_committed();
  {
    Stream lost(*client_);
    uint64_t id = lost.Send(step);
    ASSERT_TRUE(lost.Answer(id));  // it did commit; then the stream breaks and the caller knows nothing
  }
  std::optional<pb::StepAnswer> replay = stream_->Ask(step);
  ASSERT_TRUE(replay);
  EXPECT_EQ(TextOf(*replay), "REPLAYED");
  std::optional<pb::StepAnswer> again = stream_->Ask(step);
  EXPECT_EQ(again->result().SerializeAsString(), replay->result().SerializeAsString());
  EXPECT_EQ(client_->Stats().reply.steps_committed(), committed + 1);
  // The same number with other content never runs.
  pb::Step other = step;
  other.set_tokens(0, 9);
  EXPECT_EQ(Refused(session, other), "STEP_CONFLICT");
  EXPECT_EQ(code_, 6);
  // Acknowledged, the record is gone.
  session.Commit(step);
  session.Acknowledge();
  ASSERT_EQ(session.MustForward(*stream_, session.Decode(4)), "OK");
  EXPECT_EQ(Refused(session, step), "STEP_REPLY_GONE");
  EXPECT_EQ(code_, 9);
}

TEST_F(ConformanceTest, CreditIsAbsoluteAndNotUsedUpByRefusals) {
  Connect();
  Session session = NewSession();
  ASSERT_TRUE(session.Open().ok());
  for (uint32_t i = 0; i < shard_.limits().window_steps(); ++i) {
    pb::Step step = session.Prefill({static_cast<Token>(i + 1)});
    step.set_ack_seq(0);
    std::optional<pb::StepAnswer> answer = stream_->Ask(step);
    ASSERT_TRUE(answer && answer->has_result()) << TextOf(*answer);
    EXPECT_EQ(answer->result().credit().step_seq_max(), shard_.limits().window_steps());
    session.Commit(step);
  }
  pb::Step step = session.Decode(1);
  step.set_ack_seq(0);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(Refused(session, step), "CREDIT_EXCEEDED");
    EXPECT_EQ(code_, 8);
    EXPECT_TRUE(error_.has_retry_after_ms());
  }
  step.set_ack_seq(1);
  std::optional<pb::StepAnswer> answer = stream_->Ask(step);
  ASSERT_TRUE(answer && answer->has_result()) << TextOf(*answer);
  EXPECT_EQ(answer->result().credit().step_seq_max(), shard_.limits().window_steps() + 1);
}

TEST_F(ConformanceTest, TheContextHasAnEnd) {
  Connect();
  Session session = NewSession();
  ASSERT_TRUE(session.Open(10).ok());
  ASSERT_EQ(session.MustForward(*stream_, session.Prefill(std::vector<Token>(9, 1))), "OK");
  EXPECT_EQ(Refused(session, session.Prefill({1, 2})), "CONTEXT_EXCEEDED");
  EXPECT_EQ(code_, 11);
  EXPECT_EQ(session.MustForward(*stream_, session.Decode(1)), "OK");
  EXPECT_EQ(Refused(session, session.Decode(1)), "CONTEXT_EXCEEDED");
}

TEST_F(ConformanceTest, ReprefillTruncatesOnlyItsSession) {
  Connect();
  Session session = NewSession(), other = NewSession();
  ASSERT_TRUE(session.Open().ok());
  ASSERT_TRUE(other.Open().ok());
  ASSERT_EQ(session.MustForward(*stream_, session.Prefill({1, 2, 3, 4})), "OK");
  ASSERT_EQ(other.MustForward(*stream_, other.Prefill({5, 6})), "OK");
  session.log().clear();
  EXPECT_EQ(session.MustForward(*stream_, session.Prefill({7, 8})), "OK");
  EXPECT_EQ(session.Open().reply.past_len(), 2u);
  EXPECT_EQ(other.Open().reply.past_len(), 2u);
  EXPECT_EQ(other.MustForward(*stream_, other.Decode(7)), "OK");
}

TEST_F(OwnWorkerTest, ATruncationThatTheStateForbidsNamesWhereToStart) {
  Connect([](FakeWorkerFlags& flags) { flags.truncation_class = TruncationClass::kWhole; });
  Session session = NewSession();
  ASSERT_TRUE(session.Open().ok());
  ASSERT_EQ(session.MustForward(*stream_, session.Prefill({1, 2, 3, 4})), "OK");
  session.log().resize(2);
  pb::Step step = session.Prefill({9});
  session.log() = {1, 2, 3, 4};
  EXPECT_EQ(Refused(session, step), "TRUNCATE_UNSUPPORTED");
  EXPECT_EQ(code_, 9);
  ASSERT_TRUE(error_.has_nearest_past_len());
  EXPECT_EQ(error_.nearest_past_len(), 0u);
  EXPECT_EQ(error_.retry(), pb::REPREFILL);
}

TEST_F(ConformanceTest, ANewerEpochFencesTheOlderOne) {
  Connect();
  Session old = NewSession();
  ASSERT_TRUE(old.Open().ok());
  ASSERT_EQ(old.MustForward(*stream_, old.Prefill({1, 2, 3})), "OK");
  Session newer = old.Rival(2);
  Outcome<pb::OpenReply> open = newer.Open();
  ASSERT_TRUE(open.ok()) << open.Text();
  EXPECT_EQ(open.reply.superseded_epoch(), 1u);
  EXPECT_EQ(open.reply.past_len(), 0u);
  ASSERT_EQ(newer.MustForward(*stream_, newer.Prefill({7})), "OK");
  const std::string before = Observe(newer);
  // Whatever the zombie tries has no effect.
  EXPECT_EQ(TextOf(*stream_->Ask(old.Decode(4))), "EPOCH_STALE");
  Outcome<pb::OpenReply> reopen = client_->Open(old.OpenRequest());
  EXPECT_EQ(reopen.Text(), "EPOCH_STALE");
  EXPECT_EQ(reopen.status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(reopen.error->fence_epoch(), 2u);
  Outcome<pb::ReleaseReply> release = client_->Release(old.ref());
  ASSERT_TRUE(release.ok());
  EXPECT_EQ(release.reply.outcome(), pb::RELEASE_EPOCH_STALE);
  EXPECT_EQ(Observe(newer), before);
  EXPECT_EQ(newer.MustForward(*stream_, newer.Decode(8)), "OK");
  EXPECT_EQ(client_->Release(newer.ref()).reply.outcome(), pb::RELEASED);
  EXPECT_EQ(client_->Release(newer.ref()).reply.outcome(), pb::NOT_FOUND);
}

TEST_F(OwnWorkerTest, RoomIsReservedAndTheIdleMakeRoom) {
  Connect();
  std::vector<Session> sessions;
  for (int i = 0; i < 4; ++i) {
    sessions.push_back(NewSession());
    ASSERT_TRUE(sessions.back().Open(64).ok());
  }
  // The least recently used one goes, and its owner hears why.
  for (int i = 1; i < 4; ++i) {
    clock_.Advance(std::chrono::seconds(1));
    ASSERT_EQ(sessions[static_cast<size_t>(i)].MustForward(*stream_, sessions[static_cast<size_t>(i)].Prefill({1})), "OK");
  }
  Session fifth = NewSession();
  ASSERT_TRUE(fifth.Open(64).ok());
  EXPECT_EQ(TextOf(*stream_->Ask(sessions[0].Prefill({1}))), "CACHE_MISS/EVICTED_LRU");
  // TTL.
  clock_.Advance(std::chrono::seconds(101));
  EXPECT_EQ(TextOf(*stream_->Ask(sessions[1].Decode(2))), "CACHE_MISS/EVICTED_TTL");
  EXPECT_EQ(client_->Stats().reply.sessions_live(), 0u);
  EXPECT_EQ(client_->Stats().reply.kv_tokens_reserved(), 0u);
  EXPECT_EQ(client_->Stats().reply.sequences_free(), 4u);
}

TEST_F(OwnWorkerTest, NobodyBusyIsEvictedAndTheRefusalNamesWhatIsShort) {
  struct Row {
    uint32_t sessions_max;
    std::string text;
  } rows[] = {{2, "capacity/sessions"}, {3, "capacity/tokens"}};
  for (const Row& row : rows) {
    Connect([&](FakeWorkerFlags& flags) { flags.worker.hot_kv = {.sessions_max = row.sessions_max, .context_tokens = 64, .budget_tokens = 96, .ttl_seconds = 100}; });
    Session a = NewSession(), b = NewSession();
    ASSERT_TRUE(a.Open(64).ok());
    ASSERT_TRUE(b.Open(32).ok());
    gate_.Close();
    pb::Step first = a.Prefill({1});
    std::vector<uint64_t> ids = {stream_->Send(first)};
    gate_.WaitForCall();
    a.Commit(first);
    ids.push_back(stream_->Send(a.Prefill({2})));  // busy also when the first is done
    ids.push_back(stream_->Send(b.Prefill({1})));
    AwaitArrival();
    std::promise<std::string> said;
    meshnet::OpenRequest request;
    request.key = {RandomId<SessionId>(), Epoch(1)};
    request.model_root = *Sha256Digest::FromRaw(shard_.model_root());
    request.range = {shard_.range().begin(), shard_.range().end()};
    request.reserve_tokens = 32;
    worker_->host().Open(request, [&](Reply<OpenReply> reply) {
      const Refusal* refusal = std::get_if<Refusal>(&reply);
      said.set_value(refusal && refusal->retry_after ? std::string(Name(refusal->reason)) + "/" + Name(refusal->detail) : "opened");
    });
    gate_.Open();
    EXPECT_EQ(said.get_future().get(), row.text);
    for (uint64_t id : ids) EXPECT_EQ(TextOf(*stream_->Answer(id)), "OK");
    stream_.reset();
    client_.reset();
  }
}

TEST_F(OwnWorkerTest, LackOfRoomIsAStatusOverTheWire) {
  struct Row {
    uint32_t sessions_max;
    std::string text;
  } rows[] = {{1, "CAPACITY/SESSIONS"}, {2, "CAPACITY/TOKENS"}};
  constexpr uint32_t kContext = 1u << 16;
  calls_are_counted_ = true;
  for (const Row& row : rows) {
    SCOPED_TRACE(row.text);
    Connect([&](FakeWorkerFlags& flags) { flags.worker.hot_kv = {.sessions_max = row.sessions_max, .context_tokens = kContext, .budget_tokens = kContext, .ttl_seconds = 100}; });
    Session busy = NewSession();
    ASSERT_TRUE(busy.Open(kContext).ok());
    // Two steps ahead: while one executes, the one behind it was admitted before and the third is on its way, so the session is busy whenever
    // the Open gets its turn.
    std::deque<uint64_t> unanswered;
    pb::ForwardRequest message;
    auto add_step = [&] {
      pb::Step step = busy.Prefill({1});
      step.set_ack_seq(step.step_seq() > 3 ? step.step_seq() - 3 : 0);
      step.set_request_id(stream_->NextId());
      unanswered.push_back(step.request_id());
      busy.Commit(step);
      *message.add_steps() = std::move(step);
    };
    add_step();
    add_step();
    stream_->SendMessage(message);
    AwaitArrival();
    auto asked = std::async(std::launch::async, [this] { return NewSession().Open(32); });
    while (asked.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      message.Clear();
      add_step();
      stream_->SendMessage(message);
      AwaitArrival();
      calls_.release();
      ASSERT_EQ(TextOf(*stream_->Answer(unanswered.front())), "OK");
      unanswered.pop_front();
    }
    Outcome<pb::OpenReply> open = asked.get();
    EXPECT_EQ(open.Text(), row.text);
    EXPECT_EQ(open.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    ASSERT_TRUE(open.error);
    EXPECT_EQ(open.error->grpc_code(), 8);
    EXPECT_TRUE(open.error->has_retry_after_ms());
    EXPECT_NE(open.status.error_details().find("google.rpc.RetryInfo"), std::string::npos);
    calls_.release(static_cast<std::ptrdiff_t>(unanswered.size()));
    for (uint64_t id : unanswered) EXPECT_EQ(TextOf(*stream_->Answer(id)), "OK");
    EXPECT_TRUE(NewSession().Open(32).ok());  // the idle one makes room
    stream_.reset();
    client_.reset();
    worker_.reset();
  }
}

TEST_F(OwnWorkerTest, SaysThatItStartsAndWhenToAskAgain) {
  std::promise<void> read_the_model;
  FakeWorkerFlags flags;
  flags.worker.listen = "127.0.0.1:0";
  Result<std::unique_ptr<WorkerServer>> worker = WorkerServer::Start(
      flags.worker, DescriptionOf(flags),
      [&] {
        read_the_model.get_future().wait();
        return Result<std::unique_ptr<Engine>>(std::make_unique<FakeEngine>(EngineOptionsOf(flags)));
      },
      clock_);
  ASSERT_TRUE(worker.ok());
  client_ = std::make_unique<Client>((*worker)->address());
  shard_ = client_->Describe().reply;
  EXPECT_EQ(shard_.state(), pb::SHARD_STATE_STARTING);
  grpc::health::v1::HealthCheckResponse health;
  ASSERT_TRUE(client_->Check("", health).ok());
  EXPECT_EQ(health.status(), grpc::health::v1::HealthCheckResponse::NOT_SERVING);
  Session session = NewSession();
  Outcome<pb::OpenReply> open = session.Open();
  EXPECT_EQ(open.Text(), "DRAINING");
  EXPECT_EQ(open.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(open.error->retry_after_ms(), 500u);
  // What clients without our table read: google.rpc.Status with our detail and a RetryInfo.
  EXPECT_NE(open.status.error_details().find("google.rpc.RetryInfo"), std::string::npos);
  EXPECT_NE(open.status.error_details().find("meshnet.shard.v1.ErrorDetail"), std::string::npos);
  stream_ = std::make_unique<Stream>(*client_);
  EXPECT_EQ(TextOf(*stream_->Ask(session.Prefill({1}))), "DRAINING");
  EXPECT_EQ(client_->Stats().reply.state(), pb::SHARD_STATE_STARTING);
  read_the_model.set_value();
  ASSERT_TRUE((*worker)->host().WaitLoaded().ok());
  TestShard::WaitFor([&] { return client_->Describe().reply.state() == pb::SHARD_STATE_SERVING; });
  EXPECT_TRUE(session.Open().ok());
  EXPECT_EQ(session.MustForward(*stream_, session.Prefill({1})), "OK");
  stream_.reset();
}

TEST_F(OwnWorkerTest, ACancelReachesOnlyWhatIsQueued) {
  Connect();
  Session session = NewSession();
  ASSERT_TRUE(session.Open().ok());
  const std::string before = Observe(session);
  // One message: its cancel acts after its steps, before any of them can have run.
  pb::ForwardRequest message;
  for (int i = 0; i < 3; ++i) {
    pb::Step step = session.Prefill({1, 2});
    step.set_request_id(stream_->NextId());
    *message.add_steps() = step;
    session.Commit(step);
  }
  *message.add_cancels()->mutable_ref() = session.ref();
  stream_->SendMessage(message);
  for (const pb::Step& step : message.steps()) {
    std::optional<pb::StepAnswer> answer = stream_->Answer(step.request_id());
    ASSERT_TRUE(answer);
    EXPECT_EQ(TextOf(*answer), "STEP_CANCELLED");
    EXPECT_EQ(answer->error().grpc_code(), 1);
  }
  EXPECT_EQ(Observe(session), before);
  session.Open();
  // What runs goes on.
  gate_.Close();
  pb::Step step = session.Prefill({1, 2});
  uint64_t id = stream_->Send(step);
  gate_.WaitForCall();
  pb::ForwardRequest cancel;
  *cancel.add_cancels()->mutable_ref() = session.ref();
  stream_->SendMessage(cancel);
  gate_.Open();
  EXPECT_EQ(TextOf(*stream_->Answer(id)), "OK");
}

TEST_F(OwnWorkerTest, ADeadlineThatPassesInTheQueueIsARefusal) {
  Connect();
  Session busy = NewSession(), late = NewSession();
  ASSERT_TRUE(busy.Open().ok());
  ASSERT_TRUE(late.Open().ok());
  gate_.Close();
  uint64_t busy_id = stream_->Send(busy.Prefill({1}));
  gate_.WaitForCall();
  pb::Step step = late.Prefill({1});
  step.set_deadline_ms(5);
  uint64_t late_id = stream_->Send(step);
  AwaitArrival();
  clock_.Advance(std::chrono::milliseconds(10));
  gate_.Open();
  EXPECT_EQ(TextOf(*stream_->Answer(busy_id)), "OK");
  std::optional<pb::StepAnswer> answer = stream_->Answer(late_id);
  EXPECT_EQ(TextOf(*answer), "DEADLINE_EXCEEDED");
  EXPECT_EQ(answer->error().grpc_code(), 4);
  EXPECT_EQ(late.MustForward(*stream_, late.Prefill({1})), "OK");
}

TEST_F(OwnWorkerTest, AStepBehindARefusedOneIsAGap) {
  Connect();
  Session session = NewSession();
  ASSERT_TRUE(session.Open().ok());
  gate_.Close();
  Session busy = NewSession();
  ASSERT_TRUE(busy.Open().ok());
  uint64_t busy_id = stream_->Send(busy.Prefill({1}));
  gate_.WaitForCall();
  engine_->Inject({.kind = FakeFault::Kind::kRolledBack, .sequence = SequenceId(0)});
  pb::Step first = session.Prefill({1, 2});
  uint64_t first_id = stream_->Send(first);
  session.Commit(first);
  uint64_t second_id = stream_->Send(session.Prefill({3}));
  gate_.Open();
  EXPECT_EQ(TextOf(*stream_->Answer(busy_id)), "OK");
  std::optional<pb::StepAnswer> failed = stream_->Answer(first_id);
  EXPECT_EQ(TextOf(*failed), "EXEC_FAILED");
  EXPECT_EQ(failed->error().grpc_code(), 10);
  EXPECT_EQ(failed->error().retry(), pb::SAME_STEP);
  EXPECT_EQ(failed->error().session().past_len(), 0u);
  EXPECT_EQ(failed->error().session().next_step(), 1u);
  EXPECT_EQ(TextOf(*stream_->Answer(second_id)), "STEP_GAP");
  session.Open();
  EXPECT_EQ(session.MustForward(*stream_, first), "OK");  // the number is free, and the same step may be sent again
}

TEST_F(OwnWorkerTest, WhatCannotBeRolledBackIsLost) {
  Connect();
  Session session = NewSession();
  ASSERT_TRUE(session.Open().ok());
  engine_->Inject({.kind = FakeFault::Kind::kLost});
  EXPECT_EQ(TextOf(*stream_->Ask(session.Prefill({1}))), "CACHE_MISS/LOST");
  EXPECT_EQ(TextOf(*stream_->Ask(session.Prefill({1}))), "CACHE_MISS/LOST");  // the tombstone tells the owner again
  EXPECT_EQ(client_->Stats().reply.sessions_lost(), 1u);
}

TEST_F(OwnWorkerTest, APoisonedWorkerSaysSoAndServesNoMore) {
  Connect();
  Session session = NewSession();
  ASSERT_TRUE(session.Open().ok());
  ::testing::internal::CaptureStderr();
  gate_.LoseTokens();
  std::optional<pb::StepAnswer> answer = stream_->Ask(session.Prefill({1, 2}));
  ASSERT_TRUE(answer);
  EXPECT_EQ(TextOf(*answer), "POISONED");
  EXPECT_EQ(answer->error().grpc_code(), 13);
  // Health is looked at first: it must not be later than the answer.
  grpc::health::v1::HealthCheckResponse health;
  ASSERT_TRUE(client_->Check("", health).ok());
  EXPECT_EQ(health.status(), grpc::health::v1::HealthCheckResponse::NOT_SERVING);
  ::testing::internal::GetCapturedStderr();
  Outcome<pb::OpenReply> open = NewSession().Open();
  EXPECT_EQ(open.Text(), "POISONED");
  EXPECT_EQ(open.status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(client_->Describe().reply.state(), pb::SHARD_STATE_POISONED);
}

TEST_F(OwnWorkerTest, HealthTurnsBeforeOpenIsRefusedAndSessionsGoOn) {
  Connect();
  Session session = NewSession();
  ASSERT_TRUE(session.Open().ok());
  ASSERT_EQ(session.MustForward(*stream_, session.Prefill({1, 2})), "OK");
  using Health = grpc::health::v1::HealthCheckResponse;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  grpc::health::v1::HealthCheckRequest request;
  request.set_service("meshnet.shard.v1.Shard");
  auto watch = client_->health().Watch(&context, request);
  Health health;
  ASSERT_TRUE(watch->Read(&health));
  EXPECT_EQ(health.status(), Health::SERVING);
  ASSERT_TRUE(client_->Check("", health).ok());
  EXPECT_EQ(health.status(), Health::SERVING);
  EXPECT_EQ(client_->Check("nobody", health).error_code(), grpc::StatusCode::NOT_FOUND);

  Outcome<pb::DrainReply> drain = client_->Drain();
  ASSERT_TRUE(drain.ok()) << drain.Text();
  EXPECT_EQ(drain.reply.state(), pb::SHARD_STATE_DRAINING);
  ASSERT_TRUE(watch->Read(&health));
  EXPECT_EQ(health.status(), Health::NOT_SERVING);
  Outcome<pb::OpenReply> open = NewSession().Open();
  EXPECT_EQ(open.Text(), "DRAINING");
  EXPECT_EQ(open.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(open.error->retry(), pb::OTHER_WORKER);
  EXPECT_EQ(client_->Describe().reply.state(), pb::SHARD_STATE_DRAINING);
  EXPECT_EQ(session.MustForward(*stream_, session.Decode(3)), "OK");
  EXPECT_TRUE(client_->Drain().ok());
  // Its end, when the process is told to go.
  worker_->host().BeginDrain(/*then_end=*/true);
  clock_.Advance(std::chrono::seconds(60));
  worker_->host().Wake();
  TestShard::WaitFor([&] { return worker_->host().drained(); });
  EXPECT_EQ(TextOf(*stream_->Ask(session.Decode(4))), "CACHE_MISS/DRAINED");
  context.TryCancel();
  watch->Finish();
}

// One line for each case and a closing count; what failed is told above its line.
class CaseLines : public ::testing::EmptyTestEventListener {
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::printf("%s:%d: %s\n", result.file_name() ? result.file_name() : "?", result.line_number(), result.message());
  }
  void OnTestEnd(const ::testing::TestInfo& info) override {
    const char* verdict = info.result()->Skipped() ? "skipped" : info.result()->Passed() ? "ok" : "FAILED";
    std::printf("%s %s\n", verdict, info.name());
    std::fflush(stdout);
  }
  void OnTestProgramEnd(const ::testing::UnitTest& all) override {
    std::printf("%d ok, %d failed, %d skipped\n", all.successful_test_count(), all.failed_test_count(), all.skipped_test_count());
  }
};

}  // namespace
}  // namespace meshnet::conformance

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--target") != 0 || i + 1 == argc) {
      std::fprintf(stderr, "usage: shard_protocol_conformance [--target HOST:PORT]\n");
      return 2;
    }
    meshnet::conformance::target = argv[++i];
  }
  ::testing::TestEventListeners& listeners = ::testing::UnitTest::GetInstance()->listeners();
  delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new meshnet::conformance::CaseLines);
  return RUN_ALL_TESTS();
}
