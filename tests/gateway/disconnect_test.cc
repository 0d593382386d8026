// A client that goes away frees its work on every stage; one that only stopped sending, or reads slowly, does not.
#include <gtest/gtest.h>

#include "gateway_bed.h"

namespace meshnet::gateway {
namespace {

using nlohmann::json;

constexpr const char* kPath = "/v1/completions";

json Request(const std::string& prompt, uint32_t tokens_max, bool stream) {
  return {{"prompt", prompt}, {"max_tokens", tokens_max}, {"temperature", 0}, {"stream", stream}};
}

class DisconnectTest : public ::testing::TestWithParam<bool> {
 protected:
  bool stream() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(All, DisconnectTest, ::testing::Values(false, true),
                         [](const auto& each) { return each.param ? std::string("Stream") : std::string("Whole"); });

TEST_P(DisconnectTest, InPrefillEveryStageStops) {
  GatewayBed bed;
  const std::string prompt(400, 'p');  // 13 chunks of 32
  bed.shard(1).Block();
  RawHttpClient client(bed.address());
  client.Send(GatewayBed::PostBytes(kPath, Request(prompt, 50, stream())));
  bed.shard(1).WaitBlocked();
  const uint64_t before = bed.shard(2).tokens_computed();  // the canaries'
  client.Close();
  ASSERT_TRUE(bed.shard(1).WaitCancel());
  bed.shard(1).Unblock();
  bed.WaitIdle();
  EXPECT_LE(bed.shard(2).tokens_computed() - before, 32u);
  // What was computed is still of use, and the next answer is right.
  const json next = JsonOf(bed.Post(kPath, Request(prompt, 8, false)));
  EXPECT_EQ(next["choices"][0]["text"], bed.ExpectedCompletion(prompt, 8));
}

TEST_P(DisconnectTest, InDecodeEveryStageStops) {
  GatewayBed bed;
  bed.shard(2).Block(8);
  RawHttpClient client(bed.address());
  client.Send(GatewayBed::PostBytes(kPath, Request("abc", 400, stream())));
  bed.shard(2).WaitBlocked();
  if (stream()) client.ReadUntil("data: ");
  const uint64_t before = bed.shard(0).tokens_computed();
  client.Close();
  ASSERT_TRUE(bed.shard(2).WaitCancel());
  bed.shard(2).Unblock();
  bed.WaitIdle();
  // The gateway's own thread has still to take the answers in and give its session back.
  WaitUntil([&] { return bed.Metric("meshnet_requests_running") == 0; });
  EXPECT_LE(bed.shard(0).tokens_computed() - before, 1u);
  const json next = JsonOf(bed.Post(kPath, Request("abc", 8, false)));
  EXPECT_EQ(next["choices"][0]["text"], bed.ExpectedCompletion("abc", 8));
  EXPECT_GE(next["usage"]["prompt_tokens_details"]["cached_tokens"], 2);  // the prefix stayed
}

TEST_P(DisconnectTest, InTheQueueThePlaceIsGivenUp) {
  GatewayBed bed({.sessions_max = 1});
  bed.shard(0).Block();
  RawHttpClient first(bed.address());
  first.Send(GatewayBed::PostBytes(kPath, Request("abc", 8, false)));
  bed.shard(0).WaitBlocked();
  RawHttpClient second(bed.address());
  second.Send(GatewayBed::PostBytes(kPath, Request("xyz", 8, stream())));
  WaitUntil([&] { return bed.Metric("meshnet_requests_waiting") == 1; });
  second.Close();
  WaitUntil([&] { return bed.Metric("meshnet_requests_waiting") == 0; });
  bed.shard(0).Unblock();
  EXPECT_EQ(JsonOf(first.ReadReply())["choices"][0]["text"], bed.ExpectedCompletion("abc", 8));
}

TEST_P(DisconnectTest, AHalfClosedClientGetsItsWholeAnswer) {
  BedOptions options;
  options.limits.answer.probe_interval = std::chrono::milliseconds(20);
  GatewayBed bed(options);
  bed.shard(1).Block(3);
  RawHttpClient client(bed.address());
  client.Send(GatewayBed::PostBytes(kPath, Request("abc", 20, stream())));
  client.CloseWriteSide();
  bed.shard(1).WaitBlocked();
  client.ReadUntil(stream() ? ": still working" : "\r\n\r\n ");  // it is being asked whether it is there
  bed.shard(1).Unblock();
  const std::string body = BodyOf(client.ReadToEnd());
  std::string text;
  if (stream()) {
    for (const std::string& event : EventsOf(body)) {
      if (event != "[DONE]") text += json::parse(event)["choices"][0]["text"].get<std::string>();
    }
  } else {
    text = json::parse(body)["choices"][0]["text"].get<std::string>();
  }
  EXPECT_EQ(text, bed.ExpectedCompletion("abc", 20));
}

TEST(SlowReaderTest, ASlowReaderDelaysOnlyItself) {
  GatewayBed bed;
  RawHttpClient slow(bed.address());
  slow.Send(GatewayBed::PostBytes(kPath, Request("abc", 400, true)));
  // Its answer is made, and its session is free, although it has read nothing.
  WaitUntil([&] { return bed.Metric("meshnet_generated_tokens_total") >= 400; });
  WaitUntil([&] { return bed.Metric("meshnet_requests_running") == 0; });
  bed.WaitIdle();
  std::string text;
  for (const std::string& event : EventsOf(BodyOf(slow.ReadUntil("\r\n0\r\n\r\n")))) {
    if (event != "[DONE]") text += json::parse(event)["choices"][0]["text"].get<std::string>();
  }
  EXPECT_EQ(text, bed.ExpectedCompletion("abc", 400));
}

// The same without a socket, whose own buffers would hold megabytes: nobody takes what the answer says.
TEST(SlowReaderTest, AFullBufferEndsTheAnswerAndFreesItsSession) {
  ClusterOptions options;
  options.model.vocabulary_size = 512;
  options.context_tokens = 512;
  Cluster cluster(options);
  SessionPool pool(*cluster.route, cluster.clock, {});
  GrowingThreads threads(4);
  Metrics metrics;
  AnswerEnvironment environment{&pool, &threads, &metrics, &cluster.clock, {}};
  environment.limits.buffer_bytes_max = 1000;
  environment.limits.blocked_limit = std::chrono::milliseconds(50);
  auto text = CreateFakeTextModel({.end_of_generation = -1});
  auto parsed = text->Parse(ApiKind::kCompletion, Request("abc", 400, true).dump(), 512);
  auto answer = AnswerInFlight::Start(std::move(std::get<std::unique_ptr<ParsedRequest>>(parsed)), "owner", environment);
  WaitUntil([&] { return answer->finished(); });
  EXPECT_TRUE(answer->abandoned());
  EXPECT_FALSE(answer->failure());
  WaitUntil([&] { return pool.counts().answering == 0; });
  EXPECT_LT(answer->Take().size(), 2000u);
  threads.Stop();
}

}  // namespace
}  // namespace meshnet::gateway
