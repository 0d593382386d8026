// More requests than the route can take: a bounded line, quick refusals, and probes that answer whatever hangs.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <mutex>
#include <random>
#include <thread>

#include "gateway_bed.h"

namespace meshnet::gateway {
namespace {

using nlohmann::json;

json Request(const std::string& prompt, uint32_t tokens_max, bool stream = false) {
  return {{"prompt", prompt}, {"max_tokens", tokens_max}, {"temperature", 0}, {"stream", stream}};
}

TEST(LoadTest, TheExcessIsRefusedAtOnceAndTheRestFinishes) {
  BedOptions options;
  options.sessions_max = 2;
  options.gateway.queue_max = 10;
  GatewayBed bed(options);
  bed.shard(0).Block();
  std::atomic<int> refused = 0, answered = 0, wrong = 0, without_retry_after = 0;
  std::vector<std::thread> clients;
  for (int i = 0; i < 60; ++i) {
    clients.emplace_back([&, i] {
      const std::string prompt = "client " + std::to_string(i);
      const std::string reply = bed.Post("/v1/completions", Request(prompt, 6, i % 2 == 0));
      if (StatusOf(reply) == 429) {
        without_retry_after += reply.find("Retry-After: ") == std::string::npos;
        ++refused;
        return;
      }
      std::string text;
      if (i % 2 == 0) {
        for (const std::string& event : EventsOf(BodyOf(reply))) {
          if (event != "[DONE]") text += json::parse(event)["choices"][0]["text"].get<std::string>();
        }
      } else {
        text = JsonOf(reply)["choices"][0]["text"].get<std::string>();
      }
      wrong += text != bed.ExpectedCompletion(prompt, 6);
      ++answered;
    });
  }
  // While nothing can finish, exactly the two that answer and the ten in line are inside.
  WaitUntil([&] { return refused >= 48; });
  EXPECT_EQ(answered, 0);
  bed.shard(0).Unblock();
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(refused, 48);
  EXPECT_EQ(answered, 12);
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(without_retry_after, 0);
  bed.WaitIdle();
  EXPECT_EQ(bed.Metric("meshnet_refusals_total{reason=\"queue-full\"}"), 48);
}

TEST(LoadTest, ARequestOfManyChoicesGetsAllItsPlacesOrNone) {
  BedOptions options;
  options.sessions_max = 2;
  options.gateway.queue_max = 10;
  GatewayBed bed(options);
  auto many = [](int prompts, int n) {
    json request = {{"prompt", json::array()}, {"max_tokens", 2}, {"temperature", 0}, {"n", n}};
    for (int i = 0; i < prompts; ++i) request["prompt"].push_back("prompt " + std::to_string(i));
    return request;
  };
  // More than ever fit: coming back later would be no use.
  const std::string never = bed.Post("/v1/completions", many(13, 1));
  EXPECT_EQ(StatusOf(never), 400) << never;
  EXPECT_EQ(never.find("Retry-After"), std::string::npos);
  EXPECT_EQ(JsonOf(never)["error"]["param"], "prompt");
  for (const char* part : {"13 answers", "at most 12", "fewer prompts or a smaller n"}) EXPECT_NE(never.find(part), std::string::npos) << never;
  // As many as fit are all answered.
  WaitUntil([&] { return StatusOf(bed.Post("/v1/completions", many(6, 2))) == 200; });  // but while a canary has a turn

  bed.shard(0).Block();
  RawHttpClient slow(bed.address());
  slow.Send(GatewayBed::PostBytes("/v1/completions", many(8, 1)));
  WaitUntil([&] { return bed.Metric("meshnet_requests_running") == 2 && bed.Metric("meshnet_requests_waiting") == 6; });
  const std::string later = bed.Post("/v1/completions", many(5, 1));
  EXPECT_EQ(StatusOf(later), 429) << later;
  EXPECT_NE(later.find("Retry-After: "), std::string::npos);
  for (const char* part : {"2 of 2 sessions are taken and 6 answers wait", "room for 4 more", "needs 5 at once"}) {
    EXPECT_NE(later.find(part), std::string::npos) << later;
  }
  // It was in nobody's way, for no moment: what fits is let in right after it.
  RawHttpClient fitting(bed.address());
  fitting.Send(GatewayBed::PostBytes("/v1/completions", many(4, 1)));
  WaitUntil([&] { return bed.Metric("meshnet_requests_waiting") == 10; });
  const std::string full = bed.Post("/v1/completions", many(1, 1));
  EXPECT_EQ(StatusOf(full), 429);
  EXPECT_NE(full.find("the queue is full"), std::string::npos) << full;
  bed.shard(0).Unblock();
  EXPECT_EQ(StatusOf(slow.ReadReply()), 200);
  EXPECT_EQ(StatusOf(fitting.ReadReply()), 200);
}

TEST(LoadTest, ProbesAnswerWhileManyStreamsHang) {
  BedOptions options;
  options.sessions_max = 32;
  options.limits.answer.head_wait = std::chrono::milliseconds(10);
  GatewayBed bed(options);
  for (size_t i = 0; i < bed.stages(); ++i) bed.shard(i).Block();
  std::vector<std::unique_ptr<RawHttpClient>> streams;
  for (int i = 0; i < 64; ++i) {  // 32 answering, 32 in line
    streams.push_back(std::make_unique<RawHttpClient>(bed.address()));
    streams.back()->Send(GatewayBed::PostBytes("/v1/completions", Request("stream " + std::to_string(i), 8, true)));
  }
  for (auto& stream : streams) EXPECT_EQ(StatusOf(stream->ReadUntil("\r\n\r\n")), 200);
  for (const char* path : {"/livez", "/readyz", "/health", "/metrics", "/v1/models", "/props", "/cluster/v1/status"}) {
    EXPECT_EQ(StatusOf(bed.Get(path)), 200) << path;
  }
  EXPECT_EQ(bed.Metric("meshnet_requests_running"), 32);
  EXPECT_EQ(bed.Metric("meshnet_requests_waiting"), 32);
  for (size_t i = 0; i < bed.stages(); ++i) bed.shard(i).Unblock();
  for (auto& stream : streams) EXPECT_NE(stream->ReadUntil("data: [DONE]\n\n").find("[DONE]"), std::string::npos);
}

TEST(LoadTest, ScansAndNonsenseLeaveNothingBehind) {
  GatewayBed bed;
  auto descriptors = [] { return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator()); };
  bed.Get("/livez");
  const auto before = descriptors();
  bed.shard(0).Block(4);
  RawHttpClient stream(bed.address());
  stream.Send(GatewayBed::PostBytes("/v1/completions", Request("abc", 40, true)));
  bed.shard(0).WaitBlocked();

  for (int i = 0; i < 1000; ++i) RawHttpClient(bed.address()).Close();
  std::mt19937 random(1);
  for (int i = 0; i < 20; ++i) {
    std::string bytes(50000, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    if (i % 2 == 0) bytes[0] = 'G';  // past the look at the first byte
    RawHttpClient client(bed.address());
    client.Send(bytes);
  }
  RawHttpClient preface(bed.address());
  preface.Send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
  {
    std::vector<std::unique_ptr<RawHttpClient>> idle;
    for (int i = 0; i < 500; ++i) idle.push_back(std::make_unique<RawHttpClient>(bed.address()));
    EXPECT_EQ(StatusOf(bed.Get("/livez")), 200);
  }
  bed.shard(0).Unblock();
  std::string text;
  for (const std::string& event : EventsOf(BodyOf(stream.ReadUntil("\r\n0\r\n\r\n")))) {
    if (event != "[DONE]") text += json::parse(event)["choices"][0]["text"].get<std::string>();
  }
  EXPECT_EQ(text, bed.ExpectedCompletion("abc", 40));
  stream.Close();
  preface.Close();
  WaitUntil([&] { return descriptors() <= before; });
}

TEST(LoadTest, ClientsThatVanishLeaveTheRouteIdle) {
  BedOptions options;
  options.sessions_max = 2;
  GatewayBed bed(options);
  std::vector<std::thread> clients;
  for (int i = 0; i < 20; ++i) {
    clients.emplace_back([&, i] {
      RawHttpClient client(bed.address());
      client.Send(GatewayBed::PostBytes("/v1/completions", Request("vanishing " + std::to_string(i), 300, i % 2 == 0)));
      if (i % 4 == 0) client.ReadUntil("data: ", std::chrono::seconds(5));
    });
  }
  for (std::thread& client : clients) client.join();
  WaitUntil([&] { return bed.Metric("meshnet_requests_running") + bed.Metric("meshnet_requests_waiting") == 0; });
  bed.WaitIdle();
  const json reply = JsonOf(bed.Post("/v1/completions", Request("after them", 5)));
  EXPECT_EQ(reply["choices"][0]["text"], bed.ExpectedCompletion("after them", 5));
}

}  // namespace
}  // namespace meshnet::gateway
