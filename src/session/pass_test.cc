#include "session/pass.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace meshnet {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint32_t kWidth = 2;
constexpr uint32_t kVocabulary = 100;

// Three stages in the test's hands: it sees each step that may be sent and answers as it likes.
class PassTest : public ::testing::Test {
 protected:
  PassTest() : journal_("salt"), books_(3) {
    std::vector<Token> tokens(40);
    std::iota(tokens.begin(), tokens.end(), 1);
    journal_.Append(tokens);
    journal_.ForgetStages(3);
    for (size_t i = 0; i < 3; ++i) {
      shapes_[i].boundary_width = kWidth;
      shapes_[i].vocabulary_size = kVocabulary;
      books_[i].credit = {StepSeq(4), 1000};
      books_[i].incarnation.bytes.fill(static_cast<uint8_t>(i + 1));
    }
  }

  Pass Start(PassPlan plan) {
    SessionKey key;
    key.epoch = Epoch(7);
    return Pass(std::move(plan), key, journal_, books_, {&shapes_[0], &shapes_[1], &shapes_[2]});
  }

  static PassPlan Chunks(std::vector<Chunk> chunks, uint32_t in_flight = 2) {
    PassPlan plan;
    plan.chunks = std::move(chunks);
    plan.chunks_in_flight_max = in_flight;
    return plan;
  }

  struct Sent {
    size_t stage = 0;
    uint64_t ticket = 0;
    Step step;
  };

  // All steps that may be sent now, as "stage:seq@start+count".
  std::vector<std::string> Send(Pass& pass) {
    std::vector<std::string> texts;
    while (std::optional<StepToSend> send = pass.NextSend(now_)) {
      const Step& step = *send->step;
      texts.push_back(std::to_string(send->stage) + ":" + std::to_string(step.seq.value) + "@" + std::to_string(step.start.value) + "+" +
                      std::to_string(step.tokens.size()));
      sent_.push_back({send->stage, send->ticket, step.Copy()});
    }
    return texts;
  }

  // The newest step that was sent to a stage.
  const Sent& Last(size_t stage) {
    for (size_t i = sent_.size(); i-- > 0;) {
      if (sent_[i].stage == stage) return sent_[i];
    }
    ADD_FAILURE() << "nothing was sent to stage " << stage;
    return sent_.front();
  }

  StepResult Good(const Sent& send) {
    StepResult result;
    result.seq = send.step.seq;
    result.past_len = PastLen(send.step.start.value + static_cast<uint32_t>(send.step.tokens.size()));
    result.digest = DigestOfPrefix("salt", journal_.tokens().first(result.past_len.value));
    result.credit = {StepSeq(send.step.ack.value + 4), 1000};
    const auto rows = static_cast<uint32_t>(send.step.tokens.size());
    if (send.stage < 2) result.output = HiddenState(rows, kWidth, std::vector<float>(rows * kWidth, static_cast<float>(send.stage + 1)));
    if (send.stage == 2 && send.step.rows == RowsWanted::kLast) {
      result.sampled.emplace_back();
      result.sampled.back().token = 42;
    }
    if (send.stage == 2 && send.step.logits_wanted) result.output = HiddenState(rows, kVocabulary, std::vector<float>(rows * kVocabulary));
    return result;
  }

  void Answer(Pass& pass, const Sent& send) { pass.OnReply(send.stage, send.ticket, Good(send)); }
  void Answer(Pass& pass, size_t stage) { Answer(pass, Last(stage)); }

  Refusal Refuse(Reason reason) {
    Refusal refusal;
    refusal.reason = reason;
    return refusal;
  }

  Time now_{std::chrono::hours(1)};
  Journal journal_;
  std::vector<StageBook> books_;
  ShardDescription shapes_[3];
  std::vector<Sent> sent_;
};

TEST_F(PassTest, ATokenGoesThroughTheStagesInOrder) {
  PassPlan plan = Chunks({{PastLen(0), 3}});
  plan.sampling = SamplingParams();
  plan.sampling->seed = 9;
  Pass pass = Start(std::move(plan));
  EXPECT_THAT(Send(pass), ElementsAre("0:1@0+3"));
  const Step& head = Last(0).step;
  EXPECT_EQ(head.key.epoch, Epoch(7));
  EXPECT_EQ(head.incarnation, books_[0].incarnation);
  EXPECT_THAT(head.tokens, ElementsAre(1, 2, 3));
  EXPECT_EQ(head.prefix_digest, DigestOfPrefix("salt", {}));
  EXPECT_FALSE(head.input);
  EXPECT_EQ(head.rows, RowsWanted::kAll);
  EXPECT_FALSE(head.sampling);

  Answer(pass, 0);
  EXPECT_THAT(Send(pass), ElementsAre("1:1@0+3"));
  EXPECT_EQ(Last(1).step.input->rows(), 3u);
  EXPECT_EQ(Last(1).step.input->values()[0], 1.0f);
  Answer(pass, 1);
  EXPECT_THAT(Send(pass), ElementsAre("2:1@0+3"));
  EXPECT_EQ(Last(2).step.rows, RowsWanted::kLast);
  EXPECT_EQ(Last(2).step.sampling->seed, 9u);
  EXPECT_FALSE(pass.done());
  Answer(pass, 2);
  EXPECT_TRUE(pass.done());
  EXPECT_EQ(pass.TakeToken().token, 42);
  EXPECT_EQ(journal_.agreed(), PastLen(3));
  for (const StageBook& book : books_) EXPECT_EQ(book.acked, StepSeq(1));
}

TEST_F(PassTest, TheNextPassGoesOnWithSeqAckAndDigest) {
  Pass first = Start(Chunks({{PastLen(0), 3}}));
  for (size_t stage = 0; stage < 3; ++stage) Send(first), Answer(first, stage);
  PassPlan plan = Chunks({{PastLen(3), 1}});
  plan.decode = true;
  Pass second = Start(std::move(plan));
  EXPECT_THAT(Send(second), ElementsAre("0:2@3+1"));
  EXPECT_EQ(Last(0).step.ack, StepSeq(1));
  EXPECT_EQ(Last(0).step.kind, StepKind::kDecode);
  EXPECT_EQ(Last(0).step.prefix_digest, DigestOfPrefix("salt", journal_.tokens().first(3)));
}

TEST_F(PassTest, ChunksOverlapUpToTheBound) {
  Pass pass = Start(Chunks({{PastLen(0), 4}, {PastLen(4), 4}, {PastLen(8), 4}}, 2));
  EXPECT_THAT(Send(pass), ElementsAre("0:1@0+4", "0:2@4+4"));
  Answer(pass, sent_[0]);
  EXPECT_THAT(Send(pass), ElementsAre("1:1@0+4"));
  Answer(pass, sent_[1]);
  EXPECT_THAT(Send(pass), ElementsAre("1:2@4+4"));  // the third chunk waits: two are on their way
  Answer(pass, sent_[2]);
  EXPECT_THAT(Send(pass), ElementsAre("2:1@0+4"));
  EXPECT_EQ(Last(2).step.rows, RowsWanted::kNone);
  Answer(pass, 2);
  EXPECT_EQ(pass.tail_end(), PastLen(4));
  EXPECT_THAT(Send(pass), ElementsAre("0:3@8+4"));
}

TEST_F(PassTest, CreditBoundsWhatIsOutstandingAtAStage) {
  books_[0].credit = {StepSeq(2), 1000};
  Pass by_steps = Start(Chunks({{PastLen(0), 4}, {PastLen(4), 4}, {PastLen(8), 4}}, 3));
  EXPECT_THAT(Send(by_steps), ElementsAre("0:1@0+4", "0:2@4+4"));
  by_steps.Abandon();
  by_steps.Close();

  books_[0] = StageBook{};
  books_[0].credit = {StepSeq(9), 6};
  Pass by_tokens = Start(Chunks({{PastLen(0), 4}, {PastLen(4), 4}}, 2));
  EXPECT_THAT(Send(by_tokens), ElementsAre("0:1@0+4"));
  Answer(by_tokens, 0);
  EXPECT_THAT(Send(by_tokens), ElementsAre("1:1@0+4", "0:2@4+4"));
}

TEST_F(PassTest, WithNothingOutstandingAStepBringsItsOwnCredit) {
  books_[0].credit = {StepSeq(0), 0};
  Pass pass = Start(Chunks({{PastLen(0), 4}}));
  EXPECT_THAT(Send(pass), ElementsAre("0:1@0+4"));
}

TEST_F(PassTest, AnUnansweredStepGoesOutAgainUnchangedAndTheRestAfterIt) {
  Pass pass = Start(Chunks({{PastLen(0), 4}, {PastLen(4), 4}}, 2));
  Send(pass);
  for (size_t i = 0; i < 2; ++i) Answer(pass, sent_[i]);
  Send(pass);  // 1:1 and 1:2
  pass.OnReply(1, sent_[2].ticket, TransportFault{"reset"});
  EXPECT_FALSE(pass.stuck()) << "its other step is still outstanding";
  pass.OnReply(1, sent_[3].ticket, Refuse(Reason::kStepGap));
  std::optional<Pass::Stuck> stuck = pass.stuck();
  ASSERT_TRUE(stuck);
  EXPECT_EQ(stuck->stage, 1u);
  EXPECT_TRUE(std::holds_alternative<TransportFault>(stuck->trouble));

  pass.Resend(1, now_ + milliseconds(5));
  EXPECT_THAT(Send(pass), ElementsAre());
  EXPECT_EQ(pass.NextDue(now_), now_ + milliseconds(5));
  now_ += milliseconds(5);
  EXPECT_EQ(pass.NextDue(now_), std::nullopt);
  EXPECT_THAT(Send(pass), ElementsAre("1:1@0+4", "1:2@4+4"));
  EXPECT_EQ(sent_[4].step.input->values()[0], sent_[2].step.input->values()[0]);
  EXPECT_EQ(sent_[4].step.input->rows(), 4u);
}

TEST_F(PassTest, AReplyThatOvertookALostOneIsKept) {
  Pass pass = Start(Chunks({{PastLen(0), 4}, {PastLen(4), 4}}, 2));
  Send(pass);
  pass.OnReply(0, sent_[0].ticket, TransportFault{"lost"});
  Answer(pass, sent_[1]);
  EXPECT_EQ(books_[0].acked, StepSeq(0)) << "the first reply is not held";
  EXPECT_THAT(Send(pass), ElementsAre());
  ASSERT_TRUE(pass.stuck());
  pass.Resend(0, now_);
  EXPECT_THAT(Send(pass), ElementsAre("0:1@0+4"));
  Answer(pass, 0);
  EXPECT_EQ(books_[0].acked, StepSeq(2));
  EXPECT_THAT(Send(pass), ElementsAre("1:1@0+4", "1:2@4+4"));
}

TEST_F(PassTest, AnswersThatBreakTheirPromiseAreTrouble) {
  struct Row {
    const char* says;
    size_t stage;
    std::function<void(StepResult&)> change;
  };
  const Row rows[] = {
      {"step 9", 0, [](StepResult& r) { r.seq = StepSeq(9); }},
      {"past length 3", 0, [](StepResult& r) { r.past_len = PastLen(3); }},
      {"digest", 0, [](StepResult& r) { r.digest.bytes[0] ^= 1; }},
      {"hidden state of 0 rows", 0, [](StepResult& r) { r.output = HiddenState(); }},
      {"hidden state of 4 rows of 3", 0, [](StepResult& r) { r.output = HiddenState(4, 3, std::vector<float>(12)); }},
      {"0 sampled", 2, [](StepResult& r) { r.sampled.clear(); }},
      {"outside the vocabulary", 2, [](StepResult& r) { r.sampled[0].token = kVocabulary; }},
      {"outside the vocabulary", 2, [](StepResult& r) { r.sampled[0].token = -1; }},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.says);
    books_.assign(3, StageBook());
    journal_.ForgetStages(3);
    Pass pass = Start(Chunks({{PastLen(0), 4}}));
    for (size_t stage = 0; stage < row.stage; ++stage) Send(pass), Answer(pass, stage);
    Send(pass);
    StepResult result = Good(Last(row.stage));
    row.change(result);
    pass.OnReply(row.stage, Last(row.stage).ticket, std::move(result));
    std::optional<Pass::Stuck> stuck = pass.stuck();
    ASSERT_TRUE(stuck);
    EXPECT_EQ(stuck->stage, row.stage);
    EXPECT_THAT(TroubleText(stuck->trouble), HasSubstr(row.says));
    pass.Abandon();
    pass.Close();
    EXPECT_TRUE(books_[row.stage].unsure);
  }
}

TEST_F(PassTest, LogitsOfAllRowsComeFromTheTail) {
  PassPlan plan = Chunks({{PastLen(0), 4}, {PastLen(4), 2}}, 1);
  plan.yield = PassPlan::Yield::kLogits;
  Pass pass = Start(std::move(plan));
  for (int chunk = 0; chunk < 2; ++chunk) {
    for (size_t stage = 0; stage < 3; ++stage) Send(pass), Answer(pass, stage);
  }
  ASSERT_TRUE(pass.done());
  EXPECT_EQ(Last(2).step.rows, RowsWanted::kAll);
  EXPECT_TRUE(Last(2).step.logits_wanted);
  HiddenState logits = pass.TakeLogits();
  EXPECT_EQ(logits.rows(), 2u);
  EXPECT_EQ(logits.width(), kVocabulary);
}

TEST_F(PassTest, AfterAbandonAnswersCountButNothingGoesOn) {
  Pass pass = Start(Chunks({{PastLen(0), 4}, {PastLen(4), 4}}, 2));
  Send(pass);
  pass.Abandon();
  EXPECT_EQ(pass.in_flight(), 2u);
  EXPECT_TRUE(pass.in_flight_at(0));
  EXPECT_FALSE(pass.in_flight_at(1));
  Answer(pass, sent_[0]);
  pass.OnReply(0, sent_[1].ticket, Refuse(Reason::kCancelled));
  EXPECT_THAT(Send(pass), ElementsAre());
  pass.Close();
  EXPECT_EQ(journal_.stages()[0].past, PastLen(4));
  EXPECT_EQ(journal_.agreed(), PastLen(0));
  for (const StageBook& book : books_) EXPECT_FALSE(book.unsure);
}

TEST_F(PassTest, WhatWasNeverAnsweredMakesItsStageUnsure) {
  Pass pass = Start(Chunks({{PastLen(0), 4}}));
  Send(pass);
  pass.Abandon();
  pass.Close();
  EXPECT_TRUE(books_[0].unsure);
  EXPECT_FALSE(books_[1].unsure);

  books_.assign(3, StageBook());
  Pass resent = Start(Chunks({{PastLen(0), 4}}));
  Send(resent);
  resent.OnReply(0, Last(0).ticket, TransportFault{"lost"});
  resent.Resend(0, now_ + milliseconds(5));  // waits: but the first send's outcome is unknown
  resent.Abandon();
  resent.Close();
  EXPECT_TRUE(books_[0].unsure);
}

TEST_F(PassTest, ARefusalsSnapshotCorrectsTheBook) {
  for (uint32_t past : {0u, 2u, 6u, 60u}) {
    SCOPED_TRACE(past);
    books_.assign(3, StageBook());
    journal_.ForgetStages(3);
    journal_.Commit(0, PastLen(6));
    Pass pass = Start(Chunks({{PastLen(6), 4}}));
    Send(pass);
    Refusal refusal = Refuse(Reason::kCacheMiss);
    refusal.detail = Detail::kPastMismatch;
    refusal.session = SessionSnapshot{PastLen(past), {}, StepSeq(5), StepSeq(8)};
    const bool ours = past <= journal_.length().value;
    if (ours) refusal.session->digest = DigestOfPrefix("salt", journal_.tokens().first(past));
    pass.OnReply(0, Last(0).ticket, refusal);
    std::optional<Pass::Stuck> stuck = pass.stuck();
    ASSERT_TRUE(stuck);
    EXPECT_EQ(stuck->shard_agreed, ours ? std::optional(PastLen(past)) : std::nullopt);
    pass.Abandon();
    pass.Close();
    EXPECT_EQ(journal_.stages()[0], (StageHeld{PastLen(past), PastLen(ours ? past : 6)}));
    EXPECT_EQ(books_[0].acked, StepSeq(4));
    EXPECT_FALSE(books_[0].unsure);
  }
}

TEST_F(PassTest, AStepThatFailedMidwayLeavesItsStart) {
  for (Reason reason : {Reason::kExecFailed, Reason::kCancelled, Reason::kCapacity}) {
    SCOPED_TRACE(Name(reason));
    journal_.ForgetStages(3);
    journal_.Commit(0, PastLen(10));
    Pass pass = Start(Chunks({{PastLen(6), 4}}));
    Send(pass);
    pass.OnReply(0, Last(0).ticket, Refuse(reason));
    pass.Abandon();
    pass.Close();
    EXPECT_EQ(journal_.stages()[0].past, PastLen(reason == Reason::kCapacity ? 10 : 6));
  }
}

}  // namespace
}  // namespace meshnet
