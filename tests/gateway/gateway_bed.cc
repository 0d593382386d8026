#include "gateway_bed.h"

#include <thread>

namespace meshnet::gateway {

void WaitUntil(const std::function<bool()>& claim) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!claim()) {
    if (std::chrono::steady_clock::now() > deadline) {
      ADD_FAILURE() << "what was waited for did not come";
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the machine has others to serve
  }
}

GatewayBed::GatewayBed(BedOptions options) : options_(std::move(options)) {
  model_.layer_count = 6;
  model_.vocabulary_size = 512;
  model_.answer_tokens = options_.answer_tokens;
  if (options_.answer_tokens > 0) model_.end_of_generation_tokens = {2};
  std::vector<ShardLink*> links;
  for (uint32_t stage = 0; stage < options_.stages; ++stage) {
    LocalShardOptions shard;
    shard.model = model_;
    shard.range = {stage * 6 / options_.stages, (stage + 1) * 6 / options_.stages};
    shard.address = "shard-" + std::to_string(stage) + ":7070";
    shard.sessions_max = options_.sessions_max;
    shard.context_tokens = options_.context_tokens;
    shard.budget_tokens = options_.sessions_max * options_.context_tokens;
    shards_.push_back(std::make_unique<LocalShard>(shard, clock_));
    links.push_back(shards_.back().get());
  }
  route_ = std::make_unique<Route>(links, clock_);
  FakeTextModelOptions text;
  text.has_tokenizer = options_.has_tokenizer;
  if (options_.answer_tokens == 0) text.end_of_generation = -1;  // no token ends an answer by chance
  text_ = CreateFakeTextModel(text);
  options_.gateway.listen = "127.0.0.1:0";
  options_.limits.monitor.interval = std::chrono::milliseconds(50);
  auto started = StartGateway(options_.gateway, options_.limits, *route_, *text_, links, clock_);
  EXPECT_TRUE(started.ok()) << started.status().message();
  if (!started.ok()) std::abort();
  gateway_ = std::move(started).value();
  if (options_.wait_ready) WaitReady(true);
}

GatewayBed::~GatewayBed() {
  for (auto& shard : shards_) shard->Unblock();
  gateway_->Stop();
  gateway_.reset();
  route_.reset();
}

std::string GatewayBed::Call(const std::string& method, const std::string& path, const std::string& body, const std::string& headers) {
  RawHttpClient client(address());
  std::string bytes = method + " " + path + " HTTP/1.1\r\nHost: test\r\nConnection: close\r\n" + headers;
  if (!body.empty()) bytes += "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
  client.Send(bytes + "\r\n" + body);
  return client.ReadToEnd(std::chrono::seconds(60));
}

std::string GatewayBed::PostBytes(const std::string& path, const nlohmann::json& body) {
  const std::string text = body.dump();
  return "POST " + path + " HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(text.size()) +
         "\r\n\r\n" + text;
}

std::string GatewayBed::ExpectedCompletion(const std::string& prompt, uint32_t tokens_max) const {
  SamplingParams greedy;
  greedy.temperature = 0;
  std::string text;
  for (Token token : FakeAnswer(model_, text_->TokenizeText(prompt), tokens_max, greedy)) {
    if (!text_->IsEndOfGeneration(token)) text += text_->Piece(token);
  }
  return text;
}

void GatewayBed::WaitReady(bool ready) {
  WaitUntil([&] { return (StatusOf(Get("/readyz")) == 200) == ready; });
}

void GatewayBed::WaitIdle() {
  for (auto& shard : shards_) {
    EXPECT_TRUE(shard->WaitStats([](const ShardStats& stats) { return stats.sessions_busy == 0 && stats.steps_queued == 0; }));
  }
}

double GatewayBed::Metric(const std::string& series) {
  const std::string text = "\n" + BodyOf(Get("/metrics"));
  const size_t at = text.find("\n" + series + " ");
  return at == std::string::npos ? -1 : std::atof(text.c_str() + at + series.size() + 2);
}

nlohmann::json JsonOf(const std::string& reply) { return nlohmann::json::parse(BodyOf(reply), nullptr, /*allow_exceptions=*/false); }

std::vector<std::string> EventsOf(const std::string& body) {
  std::vector<std::string> events;
  for (size_t begin = 0; begin < body.size();) {
    size_t end = body.find("\n\n", begin);
    if (end == std::string::npos) end = body.size();
    const std::string event = body.substr(begin, end - begin);
    if (event.rfind("data: ", 0) == 0) events.push_back(event.substr(6));
    begin = end + 2;
  }
  return events;
}

}  // namespace meshnet::gateway
