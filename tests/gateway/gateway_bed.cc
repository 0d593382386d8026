#include "gateway_bed.h"

#include <future>
#include <thread>

namespace meshnet::gateway {
namespace {
constexpr std::chrono::seconds kLongWhile(30);
}  // namespace

void WaitUntil(const std::function<bool()>& claim) {
  const auto deadline = std::chrono::steady_clock::now() + kLongWhile;
  while (!claim()) {
    if (std::chrono::steady_clock::now() > deadline) {
      ADD_FAILURE() << "what was waited for did not come";
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the machine has others to serve
  }
}

BedStage::BedStage(Cluster& cluster, size_t stage) : cluster_(cluster), stage_(stage) {
  cluster_.link(stage).OnCancel([this] {
    std::lock_guard lock(mutex_);
    ++cancels_;
    changed_.notify_all();
  });
}

void BedStage::OnRun() {
  std::unique_lock lock(mutex_);
  if (!block_) return;
  if (calls_left_ > 0) {
    --calls_left_;
    return;
  }
  blocked_ = true;
  changed_.notify_all();
  changed_.wait(lock, [&] { return !block_; });
  blocked_ = false;
}

void BedStage::Kill() {
  cluster_.Kill(stage_);
  Unblock();  // the process is gone, whatever it still computes
}

void BedStage::Restart() {
  Kill();
  cluster_.Start(stage_);
}

void BedStage::Block(uint32_t calls) {
  std::lock_guard lock(mutex_);
  block_ = true;
  calls_left_ = calls;
  cancels_ = 0;
}

void BedStage::Unblock() {
  std::lock_guard lock(mutex_);
  block_ = false;
  changed_.notify_all();
}

void BedStage::WaitBlocked() {
  std::unique_lock lock(mutex_);
  EXPECT_TRUE(changed_.wait_for(lock, kLongWhile, [&] { return blocked_; }));
}

bool BedStage::WaitCancel() {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kLongWhile, [&] { return cancels_ > 0; });
}

bool BedStage::WaitStats(const std::function<bool(const ShardStats&)>& claim) {
  const auto deadline = std::chrono::steady_clock::now() + kLongWhile;
  while (!claim(StatsNow())) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

ShardStats BedStage::StatsNow() {
  std::promise<ShardStats> stats;
  cluster_.host(stage_).Stats([&](Reply<ShardStats> reply) { stats.set_value(std::get<ShardStats>(std::move(reply))); });
  return stats.get_future().get();
}

uint64_t BedStage::tokens_computed() { return cluster_.engine(stage_).counts().tokens; }

GatewayBed::GatewayBed(BedOptions options) : options_(std::move(options)) {
  model_.layer_count = 6;
  model_.vocabulary_size = 512;
  model_.answer_tokens = options_.answer_tokens;
  if (options_.answer_tokens > 0) model_.end_of_generation_tokens = {2};
  ClusterOptions cluster;
  cluster.model = model_;
  cluster.cuts = {2, 4};
  cluster.sessions_max = options_.sessions_max;
  cluster.context_tokens = options_.context_tokens;
  cluster.budget_tokens = options_.sessions_max * options_.context_tokens;
  cluster.chunk_rows_max = 32;
  stages_.resize(cluster.cuts.size() + 1);
  cluster.on_run = [this](size_t stage) {
    if (stages_[stage]) stages_[stage]->OnRun();
  };
  cluster_ = std::make_unique<Cluster>(cluster);
  std::vector<ShardLink*> links;
  for (size_t stage = 0; stage < stages_.size(); ++stage) {
    stages_[stage] = std::make_unique<BedStage>(*cluster_, stage);
    links.push_back(&cluster_->link(stage));
  }
  FakeTextModelOptions text;
  text.has_tokenizer = options_.has_tokenizer;
  if (options_.answer_tokens == 0) text.end_of_generation = -1;  // no token ends an answer by chance
  text_ = CreateFakeTextModel(text);
  options_.gateway.listen = "127.0.0.1:0";
  options_.limits.monitor.interval = options_.monitor_interval;
  auto started = StartGateway(options_.gateway, options_.limits, *cluster_->route, *text_, links, cluster_->clock);
  EXPECT_TRUE(started.ok()) << started.status().message();
  if (!started.ok()) std::abort();
  gateway_ = std::move(started).value();
  if (options_.wait_ready) WaitReady(true);
}

GatewayBed::~GatewayBed() {
  for (auto& stage : stages_) stage->Unblock();
  gateway_.reset();
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
  for (auto& stage : stages_) {
    EXPECT_TRUE(stage->WaitStats([](const ShardStats& stats) { return stats.sessions_busy == 0 && stats.steps_queued == 0; }));
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
