#include "worker_bed.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace meshnet::conformance {

WorkerProcess::WorkerProcess(std::vector<std::string> flags, process::StartOptions options) {
  std::string pattern = ::testing::TempDir() + "meshnet-worker-XXXXXX";
  MESHNET_CHECK(mkdtemp(pattern.data()) != nullptr);
  folder_ = pattern;
  flags.insert(flags.begin(), MESHNET_FAKE_WORKER);
  process_ = std::make_unique<process::TestProcess>(flags, options, folder_);
}

WorkerProcess::~WorkerProcess() {
  process_.reset();
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

std::string WorkerProcess::Address() {
  process::Eventually([this] { return process_->out().ends_with('\n') || !process_->running(); });
  std::string line = process_->out();
  return line.substr(0, line.find('\n'));
}

int WorkerProcess::descriptor_count() const {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(process_->pid()) + "/fd")) count += entry.is_symlink();
  return count;
}

std::unique_ptr<ShardLink> Link(const std::string& address, const TlsOptions& tls) {
  Result<std::unique_ptr<ShardLink>> link = ConnectShard(address, tls);
  MESHNET_CHECK(link.ok());
  return std::move(link).value();
}

Reply<ShardDescription> Describe(ShardLink& link, Duration timeout) {
  auto promise = std::make_shared<std::promise<Reply<ShardDescription>>>();
  link.Describe(std::chrono::steady_clock::now() + timeout, [promise](Reply<ShardDescription> reply) { promise->set_value(std::move(reply)); });
  return promise->get_future().get();
}

ShardDescription MustDescribe(ShardLink& link) {
  Reply<ShardDescription> reply = Describe(link);
  if (TransportFault* fault = std::get_if<TransportFault>(&reply)) ADD_FAILURE() << fault->message;
  return std::get<ShardDescription>(reply);
}

Reply<ShardStats> Stats(ShardLink& link) {
  auto promise = std::make_shared<std::promise<Reply<ShardStats>>>();
  link.Stats(InAMinute(), [promise](Reply<ShardStats> reply) { promise->set_value(std::move(reply)); });
  return promise->get_future().get();
}

TwoStageSession::TwoStageSession(ShardLink& head, ShardLink& tail, const ShardDescription& head_shard, const ShardDescription& tail_shard) {
  stages_.push_back({head, head_shard, {}});
  stages_.push_back({tail, tail_shard, {}});
  key_ = {RandomId<SessionId>(), Epoch(1)};
}

bool TwoStageSession::Open(StageOf& stage) {
  OpenRequest request;
  request.key = key_;
  request.model_root = stage.shard.model_root;
  request.range = stage.shard.range;
  auto promise = std::make_shared<std::promise<Reply<OpenReply>>>();
  stage.link.Open(request, InAMinute(), [promise](Reply<OpenReply> reply) { promise->set_value(std::move(reply)); });
  Reply<OpenReply> reply = promise->get_future().get();
  if (Refusal* refusal = std::get_if<Refusal>(&reply)) error_ = refusal->message;
  if (TransportFault* fault = std::get_if<TransportFault>(&reply)) error_ = fault->message;
  if (!std::holds_alternative<OpenReply>(reply)) return false;
  stage.incarnation = std::get<OpenReply>(reply).incarnation;
  return true;
}

std::optional<StepResult> TwoStageSession::Forward(StageOf& stage, const std::vector<Token>& tokens, std::optional<HiddenState> input, bool sampling) {
  Step step;
  step.key = key_;
  step.incarnation = stage.incarnation;
  step.seq = next_;
  step.kind = log_.empty() ? StepKind::kPrefill : StepKind::kDecode;
  step.start = PastLen(static_cast<uint32_t>(log_.size()));
  step.prefix_digest = DigestOfPrefix("", log_);
  step.tokens = tokens;
  step.input = std::move(input);
  step.rows = stage.shard.is_tail() ? RowsWanted::kLast : RowsWanted::kAll;
  if (sampling) step.sampling = Greedy();
  step.ack = StepSeq(next_.value - 1);
  Reply<StepResult> reply = SendOver(stage.link, std::move(step)).get();
  if (Refusal* refusal = std::get_if<Refusal>(&reply)) error_ = refusal->message;
  if (TransportFault* fault = std::get_if<TransportFault>(&reply)) error_ = fault->message;
  if (!std::holds_alternative<StepResult>(reply)) return std::nullopt;
  return std::move(std::get<StepResult>(reply));
}

std::vector<Token> TwoStageSession::Answer(const std::vector<Token>& prompt, size_t count) {
  for (StageOf& stage : stages_) {
    if (!Open(stage)) return {};
  }
  std::vector<Token> answer, tokens = prompt;
  while (answer.size() < count) {
    std::optional<StepResult> hidden = Forward(stages_[0], tokens, std::nullopt, false);
    if (!hidden) return {};
    std::optional<StepResult> sampled = Forward(stages_[1], tokens, std::move(hidden->output), log_.empty());
    if (!sampled) return {};
    log_.insert(log_.end(), tokens.begin(), tokens.end());
    next_ = next_.Next();
    tokens = {sampled->sampled.at(0).token};
    answer.push_back(tokens[0]);
  }
  return answer;
}

}  // namespace meshnet::conformance
