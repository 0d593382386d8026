#include "wire/error_detail.h"

#include <gtest/gtest.h>

#include "wire/clean_text.h"
#include "wire/wire_limits.h"

namespace meshnet {
namespace {

namespace pb = shard::v1;

template <size_t N>
Bytes<struct IncarnationTag, N> Filled(uint8_t value) {
  Bytes<struct IncarnationTag, N> id;
  id.bytes.fill(value);
  return id;
}

TEST(ErrorDetailTest, CarriesEachReasonWithTheCodeOfTheTable) {
  struct Row {
    Reason reason;
    int code;
    pb::RetryClass retry;
  } rows[] = {
      {Reason::kCacheMiss, 10, pb::REPREFILL},          {Reason::kEpochStale, 9, pb::NEVER},
      {Reason::kCapacity, 8, pb::SAME_STEP},            {Reason::kContextExceeded, 11, pb::NEVER},
      {Reason::kStepConflict, 6, pb::NEVER},            {Reason::kStepGap, 11, pb::SAME_STEP},
      {Reason::kStepReplyGone, 9, pb::REPREFILL},       {Reason::kCreditExceeded, 8, pb::SAME_STEP},
      {Reason::kTruncateUnsupported, 9, pb::REPREFILL}, {Reason::kModelMismatch, 9, pb::OTHER_WORKER},
      {Reason::kRangeMismatch, 9, pb::OTHER_WORKER},    {Reason::kBoundaryMismatch, 9, pb::OTHER_WORKER},
      {Reason::kBadRequest, 3, pb::NEVER},              {Reason::kUnauthenticated, 16, pb::NEVER},
      {Reason::kPermissionDenied, 7, pb::NEVER},        {Reason::kDraining, 14, pb::OTHER_WORKER},
      {Reason::kExecFailed, 10, pb::SAME_STEP},         {Reason::kPoisoned, 13, pb::OTHER_WORKER},
      {Reason::kCancelled, 1, pb::SAME_STEP},           {Reason::kDeadlineExceeded, 4, pb::SAME_STEP},
      {Reason::kProtocolMismatch, 12, pb::OTHER_WORKER},
  };
  // One row per value of the enum, which has no gaps.
  ASSERT_EQ(std::size(rows), static_cast<size_t>(Reason::kProtocolMismatch) + 1);
  for (const Row& row : rows) {
    SCOPED_TRACE(Name(row.reason));
    EXPECT_EQ(GrpcCode(row.reason), row.code);
    EXPECT_EQ(RetryClassOf(row.reason), row.retry);
    Refusal refusal;
    refusal.reason = row.reason;
    pb::ErrorDetail detail = ToProto(refusal);
    EXPECT_EQ(detail.grpc_code(), row.code);
    std::optional<Refusal> back = FromProto(detail);
    ASSERT_TRUE(back.has_value());
    EXPECT_EQ(back->reason, row.reason);
    EXPECT_FALSE(back->session || back->nearest_past_len || back->retry_after);
  }
}

TEST(ErrorDetailTest, CarriesEveryDetail) {
  for (int i = 0; i <= static_cast<int>(Detail::kLimit); ++i) {
    Refusal refusal;
    refusal.detail = static_cast<Detail>(i);
    std::optional<Refusal> back = FromProto(ToProto(refusal));
    ASSERT_TRUE(back.has_value());
    EXPECT_EQ(back->detail, refusal.detail) << Name(refusal.detail);
  }
}

TEST(ErrorDetailTest, CarriesWhatTheCallerNeedsToRecover) {
  Refusal refusal;
  refusal.reason = Reason::kCapacity;
  refusal.detail = Detail::kTokens;
  refusal.message = "stage [0,4): no room";
  refusal.fence = Epoch(7);
  refusal.incarnation = Filled<16>(3);
  refusal.session = SessionSnapshot{PastLen(5), PrefixDigest::FromRaw(std::string(16, 'd')).value(), StepSeq(9), StepSeq(12)};
  refusal.nearest_past_len = PastLen(0);
  refusal.retry_after = std::chrono::microseconds(1500);
  std::optional<Refusal> back = FromProto(ToProto(refusal));
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(back->message, refusal.message);
  EXPECT_EQ(back->fence, refusal.fence);
  EXPECT_EQ(back->incarnation, refusal.incarnation);
  ASSERT_TRUE(back->session.has_value());
  EXPECT_EQ(back->session->past_len, PastLen(5));
  EXPECT_EQ(back->session->digest, refusal.session->digest);
  EXPECT_EQ(back->session->next_step, StepSeq(9));
  EXPECT_EQ(back->session->step_seq_max, StepSeq(12));
  EXPECT_EQ(back->nearest_past_len, PastLen(0));
  EXPECT_EQ(back->retry_after, std::chrono::milliseconds(2));  // rounded up
}

TEST(ErrorDetailTest, RefusesAMalformedDetail) {
  pb::ErrorDetail unknown;
  unknown.set_reason(static_cast<pb::Reason>(99));
  EXPECT_FALSE(FromProto(unknown).has_value());
  EXPECT_FALSE(FromProto(pb::ErrorDetail()).has_value());
  pb::ErrorDetail short_id;
  short_id.set_reason(pb::CACHE_MISS);
  short_id.set_incarnation("short");
  EXPECT_FALSE(FromProto(short_id).has_value());
  pb::ErrorDetail endless;
  endless.set_reason(pb::CAPACITY);
  endless.set_retry_after_ms(UINT64_MAX);
  ASSERT_TRUE(FromProto(endless).has_value());
  EXPECT_LE(*FromProto(endless)->retry_after, std::chrono::hours(24));
}

TEST(ErrorDetailTest, KeepsMessagesShortAndClean) {
  Refusal refusal;
  refusal.message = std::string(2000, 'x') + "\n";
  EXPECT_EQ(ToProto(refusal).message().size(), kMessageTextMax);
  refusal.message = "a\x1b[2Jb\xff\xc3";
  EXPECT_EQ(ToProto(refusal).message(), "a [2Jb??");
}

TEST(CleanTextTest, KeepsCharactersWhole) {
  EXPECT_EQ(CleanText("ü漢😀", 100), "ü漢😀");
  EXPECT_EQ(CleanText("漢漢", 5), "漢");
  EXPECT_EQ(CleanText("\xed\xa0\x80", 100), "???");      // a surrogate
  EXPECT_EQ(CleanText("\xc0\xaf", 100), "??");           // overlong
  EXPECT_EQ(CleanText("\xf4\x90\x80\x80", 100), "????");  // beyond the last character
  EXPECT_EQ(CleanText("\xc2\x85x", 100), " x");          // a control character of two bytes
  EXPECT_EQ(CleanText("", 10), "");
}

TEST(StatusDetailsTest, CarriesRetryInfoForGenericClients) {
  Refusal refusal;
  refusal.reason = Reason::kCapacity;
  refusal.message = "full";
  std::string without = StatusDetails(refusal);
  EXPECT_EQ(without.find("google.rpc.RetryInfo"), std::string::npos);
  refusal.retry_after = std::chrono::milliseconds(2500);
  std::string with = StatusDetails(refusal);
  EXPECT_EQ(with.substr(0, 8), std::string("\x08\x08\x12\x04" "full", 8));  // code 8, message
  EXPECT_NE(with.find("type.googleapis.com/meshnet.shard.v1.ErrorDetail"), std::string::npos);
  // RetryInfo{retry_delay: {seconds: 2, nanos: 500000000}}
  EXPECT_NE(with.find(std::string("type.googleapis.com/google.rpc.RetryInfo\x12\x0a\x0a\x08\x08\x02\x10\x80\xca\xb5\xee\x01", 40 + 12)), std::string::npos);
}

}  // namespace
}  // namespace meshnet
