// What an operator sees and does: readiness, metrics, status, drain, logs, a worker that dies.
#include <gtest/gtest.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <cmath>
#include <future>
#include <map>
#include <mutex>
#include <thread>

#include "gateway_bed.h"

namespace meshnet::gateway {
namespace {

using nlohmann::json;

json Request(const std::string& prompt, uint32_t tokens_max, bool stream = false) {
  return {{"prompt", prompt}, {"max_tokens", tokens_max}, {"temperature", 0}, {"stream", stream}};
}

std::string StreamedText(const std::string& reply) {
  std::string text;
  for (const std::string& event : EventsOf(BodyOf(reply))) {
    if (event != "[DONE]") text += json::parse(event)["choices"][0]["text"].get<std::string>();
  }
  return text;
}

TEST(ReadinessTest, TwoCanariesLeaveNoSessionBehind) {
  GatewayBed bed;
  for (size_t i = 0; i < bed.stages(); ++i) {
    EXPECT_TRUE(bed.shard(i).WaitStats([](const ShardStats& stats) { return stats.sessions_live == 0; })) << i;
    EXPECT_GT(bed.shard(i).StatsNow().steps_committed, 1u);  // they went through every stage
  }
  EXPECT_EQ(JsonOf(bed.Get("/cluster/v1/status"))["sessions"], json::array());
}

TEST(ReadinessTest, IsRedWhileAStageIsGoneAndGreenAfterItsReturn) {
  GatewayBed bed;
  bed.Post("/v1/completions", Request("keep me", 4));
  bed.shard(1).Kill();
  bed.WaitReady(false);
  const std::string reply = bed.Get("/readyz");
  EXPECT_EQ(StatusOf(reply), 503);
  EXPECT_NE(JsonOf(reply)["error"]["message"].get<std::string>().find("[2,4)"), std::string::npos) << reply;
  EXPECT_EQ(StatusOf(bed.Get("/livez")), 200);
  bed.shard(1).Restart();
  bed.WaitReady(true);
  const json again = JsonOf(bed.Post("/v1/completions", Request("keep me", 4)));
  EXPECT_EQ(again["choices"][0]["text"], bed.ExpectedCompletion("keep me", 4));
}

TEST(ReadinessTest, AWorkerThatCameBackBetweenTwoLooksIsNotProvenYet) {
  BedOptions options;
  options.monitor_interval = std::chrono::hours(1);  // only the first look, at the start
  GatewayBed bed(options);
  bed.shard(1).Restart();
  Route& route = *bed.cluster().route;
  const uint64_t generation = route.generation();
  route.ReportLost(generation, "seen by an answer");
  ASSERT_TRUE(route.WaitForRepair(generation, bed.cluster().clock.Now() + std::chrono::seconds(30), nullptr).ok());
  const std::string reply = bed.Get("/readyz");
  EXPECT_EQ(StatusOf(reply), 503);
  EXPECT_NE(reply.find("being proven"), std::string::npos) << reply;
}

TEST(ReadinessTest, TheWorkersAreLookedAtWhileACanaryWaits) {
  BedOptions options;
  options.sessions_max = 1;
  options.limits.monitor.answer_limit = std::chrono::milliseconds(100);  // the blocked stage does not tell its figures
  GatewayBed bed(options);
  bed.shard(2).Block();
  RawHttpClient client(bed.address());
  client.Send(GatewayBed::PostBytes("/v1/completions", Request("abc", 30)));
  bed.shard(2).WaitBlocked();  // with the only session
  bed.shard(0).Restart();
  WaitUntil([&] { return bed.Metric("meshnet_requests_waiting") == 1; });  // the canary of the new worker
  ShardHost& host = bed.cluster().host(0);
  OpenRequest open;
  open.key.session = RandomId<SessionId>();
  open.model_root = host.description().model_root;
  open.range = host.description().range;
  for (const uint64_t epoch : {2, 1}) {
    open.key.epoch = Epoch(epoch);
    std::promise<bool> opened;
    host.Open(open, [&opened](Reply<OpenReply> reply) { opened.set_value(std::holds_alternative<OpenReply>(reply)); });
    EXPECT_EQ(opened.get_future().get(), epoch == 2);
  }
  WaitUntil([&] { return bed.Metric("meshnet_refusals_total{reason=\"epoch-stale\"}") == 1; });
  EXPECT_EQ(bed.Metric("meshnet_requests_waiting"), 1) << "and the canary still waits";
}

TEST(ReadinessTest, ADownRouteIsA503ThatNamesTheStage) {
  GatewayBed bed;
  bed.shard(2).Kill();
  WaitUntil([&] { return JsonOf(bed.Get("/cluster/v1/status"))["route"]["state"] != "serving"; });
  const std::string reply = bed.Post("/v1/completions", Request("abc", 4));
  EXPECT_EQ(StatusOf(reply), 503);
  EXPECT_NE(reply.find("Retry-After: "), std::string::npos);
  EXPECT_NE(JsonOf(reply)["error"]["message"].get<std::string>().find("[4,6)"), std::string::npos) << reply;
}

TEST(ReadinessTest, ServesProbesWhileTheWorkersAreNotThereYet) {
  ClusterOptions single;
  single.cuts = {};
  Cluster cluster(single);
  FaultyLink& late = cluster.link(0);
  late.Kill();
  Route route({&late}, cluster.clock);  // nobody has connected it
  auto text = CreateFakeTextModel({.vocabulary_size = 1000});
  GatewayOptions options;
  options.listen = "127.0.0.1:0";
  GatewayLimits limits;
  limits.monitor.interval = std::chrono::milliseconds(20);
  auto gateway = StartGateway(options, limits, route, *text, {&late}, cluster.clock);
  ASSERT_TRUE(gateway.ok());
  auto get = [&](const char* path) {
    RawHttpClient client((*gateway)->address());
    client.Send(std::string("GET ") + path + " HTTP/1.1\r\n\r\n");
    return StatusOf(client.ReadReply());
  };
  EXPECT_EQ(get("/livez"), 200);
  EXPECT_EQ(get("/readyz"), 503);
  cluster.Start(0);
  WaitUntil([&] { return get("/readyz") == 200; });
}

TEST(FailoverTest, AnAnswerGoesOnAfterItsWorkerDied) {
  for (const size_t stage : {0u, 1u, 2u}) {
    GatewayBed bed;
    bed.shard(stage).Block(20);
    RawHttpClient client(bed.address());
    client.Send(GatewayBed::PostBytes("/v1/completions", Request("abc", 60, true)));
    bed.shard(stage).WaitBlocked();
    client.ReadUntil("data: ");
    bed.shard(stage).Restart();
    EXPECT_EQ(StreamedText(client.ReadUntil("\r\n0\r\n\r\n")), bed.ExpectedCompletion("abc", 60)) << stage;
    EXPECT_GE(bed.Metric("meshnet_replays_total"), 1);
  }
}

TEST(DrainTest, RunningAnswersFinishAndNewOnesAreRefused) {
  GatewayBed bed;
  bed.shard(1).Block(5);
  RawHttpClient client(bed.address());
  client.Send(GatewayBed::PostBytes("/v1/completions", Request("abc", 30, true)));
  bed.shard(1).WaitBlocked();
  bed.gateway().BeginDrain();
  EXPECT_EQ(StatusOf(bed.Get("/readyz")), 503);
  EXPECT_EQ(StatusOf(bed.Get("/livez")), 200);
  const std::string refused = bed.Post("/v1/completions", Request("xyz", 4));
  EXPECT_EQ(StatusOf(refused), 503);
  EXPECT_NE(refused.find("Retry-After: "), std::string::npos);
  EXPECT_FALSE(bed.gateway().WaitDrained(std::chrono::milliseconds(1)));
  bed.shard(1).Unblock();
  EXPECT_EQ(StreamedText(client.ReadUntil("\r\n0\r\n\r\n")), bed.ExpectedCompletion("abc", 30));
  EXPECT_TRUE(bed.gateway().WaitDrained(std::chrono::seconds(20)));
}

TEST(DrainTest, StopEndsHangingAnswers) {
  GatewayBed bed({.sessions_max = 1});
  bed.shard(1).Block();
  RawHttpClient answering(bed.address()), waiting(bed.address());
  answering.Send(GatewayBed::PostBytes("/v1/completions", Request("abc", 30, true)));
  bed.shard(1).WaitBlocked();
  waiting.Send(GatewayBed::PostBytes("/v1/completions", Request("xyz", 30)));
  WaitUntil([&] { return bed.Metric("meshnet_requests_waiting") == 1; });
  bed.gateway().Stop();  // a worker that never answers does not hold it
  EXPECT_TRUE(bed.gateway().WaitDrained(std::chrono::milliseconds(1)));
  answering.ReadToEnd();
  waiting.ReadToEnd();
  EXPECT_TRUE(answering.closed_by_server());
  EXPECT_TRUE(waiting.closed_by_server());
}

// Whether a line is `name{label="value",…} number`.
bool IsSample(const std::string& line) {
  size_t at = line.find_first_not_of("abcdefghijklmnopqrstuvwxyz_");
  if (at == std::string::npos || at == 0) return false;
  if (line[at] == '{') {
    const size_t close = line.find('}', at);
    if (close == std::string::npos) return false;
    for (size_t begin = at + 1; begin < close;) {
      const size_t quote = line.find("=\"", begin);
      const size_t end = quote == std::string::npos ? quote : line.find('"', quote + 2);
      if (end == std::string::npos || end > close) return false;
      begin = end + 1 + (line[end + 1] == ',');
    }
    at = close + 1;
  }
  return at + 1 < line.size() && line[at] == ' ' && line.find(' ', at + 1) == std::string::npos;
}

// Name, with its labels, to value; the test fails on a line that is not exposition text.
std::map<std::string, double> Series(const std::string& text) {
  std::map<std::string, double> series;
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = text.find('\n', begin);
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.empty() || line[0] == '#') continue;
    EXPECT_TRUE(IsSample(line)) << line;
    const std::string number = line.substr(line.rfind(' ') + 1);
    size_t used = 0;
    const double value = std::stod(number, &used);
    EXPECT_EQ(used, number.size()) << line;
    EXPECT_TRUE(std::isfinite(value)) << line;
    series[line.substr(0, line.rfind(' '))] = value;
  }
  return series;
}

TEST(MetricsTest, AreThereFromTheStartFiniteAndGrowing) {
  BedOptions options;
  options.gateway.model_id = "the-model";
  GatewayBed bed(options);
  const std::string text = BodyOf(bed.Get("/metrics"));
  auto before = Series(text);
  for (const char* name : {"meshnet_prompt_tokens_total", "meshnet_prompt_tokens_cached_total", "meshnet_generated_tokens_total",
                           "meshnet_session_evictions_total{reason=\"lru\"}", "meshnet_refusals_total{reason=\"queue-full\"}", "meshnet_replays_total",
                           "meshnet_requests_running", "meshnet_requests_waiting", "meshnet_kv_tokens_reserved", "meshnet_kv_tokens_used",
                           "meshnet_time_to_first_token_seconds_count", "meshnet_inter_token_latency_seconds_sum", "meshnet_queue_seconds_count",
                           "meshnet_hop_seconds_count{stage=\"0\"}", "meshnet_hop_seconds_count{stage=\"2\"}"}) {
    EXPECT_TRUE(before.count(name)) << name << "\n" << text;
  }
  bed.Post("/v1/completions", Request("a secret prompt", 10));
  bed.Post("/v1/completions", Request("a secret prompt", 10));
  auto after = Series(BodyOf(bed.Get("/metrics")));
  for (const auto& [name, value] : before) {
    if (name.find("_total") != std::string::npos || name.find("_count") != std::string::npos || name.find("_bucket") != std::string::npos) {
      EXPECT_GE(after[name], value) << name;
    }
  }
  EXPECT_EQ(after["meshnet_generated_tokens_total"] - before["meshnet_generated_tokens_total"], 20);
  EXPECT_EQ(after["meshnet_prompt_tokens_total"] - before["meshnet_prompt_tokens_total"], 30);
  EXPECT_GE(after["meshnet_prompt_tokens_cached_total"], 14);
  EXPECT_EQ(after["meshnet_time_to_first_token_seconds_count"] - before["meshnet_time_to_first_token_seconds_count"], 2);
  EXPECT_EQ(BodyOf(bed.Get("/metrics")).find("secret"), std::string::npos);
}

TEST(StatusTest, ShowsRouteWorkersAndSessionsButNoWholeId) {
  GatewayBed bed;
  bed.Post("/v1/completions", Request("abc", 10));
  const std::string reply = bed.Get("/cluster/v1/status");
  const json status = JsonOf(reply);
  EXPECT_EQ(status["route"]["state"], "serving");
  EXPECT_EQ(status["route"]["model"], "fake");
  EXPECT_GE(status["route"]["epoch"], 1);
  ASSERT_EQ(status["workers"].size(), 3u);
  const json& worker = status["workers"][1];
  EXPECT_EQ(worker["address"], "shard1");
  EXPECT_EQ(worker["layers"], json({2, 4}));
  EXPECT_EQ(worker["state"], "serving");
  EXPECT_EQ(worker["sessions_live"], 1);
  EXPECT_EQ(worker["sessions_busy"], 0);
  for (const char* name : {"pid", "incarnation", "kv_tokens_reserved", "kv_tokens_used", "kv_bytes_allocated", "hop_seconds_p50", "hop_seconds_p99"}) {
    EXPECT_TRUE(worker.contains(name)) << name;
  }
  EXPECT_EQ(worker["evictions"], json({{"lru", 0}, {"ttl", 0}, {"superseded", 0}, {"lost", 0}}));
  EXPECT_TRUE(worker["refusals"].is_object());
  EXPECT_EQ(worker["steps_replayed"], 0);
  ASSERT_EQ(status["sessions"].size(), 1u);
  const json& session = status["sessions"][0];
  EXPECT_EQ(session["id_prefix"].get<std::string>().size(), 8u);
  EXPECT_EQ(session["owner"], "127.0.0.1");
  EXPECT_EQ(session["state"], "idle");
  EXPECT_GE(session["past_len"], 12);
  EXPECT_GE(session["idle_seconds"], 0);
  EXPECT_TRUE(session.contains("epoch"));
  bed.shard(1).Kill();
  EXPECT_EQ(JsonOf(bed.Get("/cluster/v1/status"))["workers"][1]["state"], "unreachable");
}

TEST(StatusTest, CountsWhatAWorkerGaveUpAndRefused) {
  GatewayBed bed;
  bed.Post("/v1/completions", Request("abc", 4));
  bed.shard(1).Kill();
  bed.WaitReady(false);
  bed.shard(1).Restart();
  bed.WaitReady(true);
  bed.Post("/v1/completions", Request("abc", 4));
  // The session goes on with a new epoch, which takes the place of the old one where that was still held.
  const json worker = JsonOf(bed.Get("/cluster/v1/status"))["workers"][0];
  EXPECT_GE(worker["evictions"]["superseded"], 1) << worker;
}

class LinesSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  std::vector<std::string> lines;
  // The one line that says `what`, once there is one.
  std::string WaitFor(const std::string& what) {
    std::string found;
    WaitUntil([&] {
      std::lock_guard lock(mutex_);
      for (const std::string& line : lines) {
        if (line.find(what) != std::string::npos) found = line;
      }
      return !found.empty();
    });
    return found;
  }

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override { lines.emplace_back(message.payload.begin(), message.payload.end()); }
  void flush_() override {}
};

// The log goes into `sink` while it lives.
struct LogTest : ::testing::Test {
  LogTest() { spdlog::set_default_logger(std::make_shared<spdlog::logger>("test", sink)); }
  ~LogTest() override { spdlog::set_default_logger(before); }
  const std::shared_ptr<spdlog::logger> before = spdlog::default_logger();
  const std::shared_ptr<LinesSink> sink = std::make_shared<LinesSink>();
};

TEST_F(LogTest, OneLineARequestWithoutTextOrKeys) {
  {
    GatewayBed bed;
    for (int i = 0; i < 20; ++i) bed.Post("/v1/completions", Request("a secret prompt", 3), "Authorization: Bearer sk-secret\r\nx-request-id: r1\r\n");
    for (int i = 0; i < 20; ++i) bed.Post("/v1/completions", {{"secret", "secret"}});
    for (int i = 0; i < 20; ++i) bed.Get("/secret/path");
    bed.gateway().Stop();
  }
  EXPECT_GE(sink->lines.size(), 20u);
  EXPECT_LE(sink->lines.size(), 30u);
  for (const std::string& line : sink->lines) EXPECT_EQ(line.find("secret"), std::string::npos) << line;
}

// Eight tokens, then the second stage stands still.
TEST_F(LogTest, ALineTellsWhatWasComputedForAClientThatIsGone) {
  GatewayBed bed;
  bed.shard(1).Block(8);
  RawHttpClient client(bed.address());
  client.Send(GatewayBed::PostBytes("/v1/completions", Request("abc", 100, true)));
  bed.shard(1).WaitBlocked();
  client.Close();
  const std::string line = sink->WaitFor("status=499");
  EXPECT_NE(line.find(" prompt=3 cached=0 generated=8 "), std::string::npos) << line;
}

TEST_F(LogTest, AFailedAnswerIsCountedAndItsLineTellsWhatWasComputed) {
  BedOptions options;
  options.gateway.answer_wait = std::chrono::milliseconds(200);
  GatewayBed bed(options);
  bed.shard(1).Block(8);
  RawHttpClient client(bed.address());
  client.Send(GatewayBed::PostBytes("/v1/completions", Request("abc", 100)));
  bed.shard(1).WaitBlocked();
  bed.shard(1).Kill();
  EXPECT_EQ(StatusOf(client.ReadReply()), 503);
  const std::string line = sink->WaitFor("status=503");
  EXPECT_NE(line.find(" prompt=3 cached=0 generated=8 "), std::string::npos) << line;
  EXPECT_EQ(bed.Metric("meshnet_generated_tokens_total"), 8);
  EXPECT_EQ(bed.Metric("meshnet_prompt_tokens_total"), 3);
}

}  // namespace
}  // namespace meshnet::gateway
