#include "real_route.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <future>
#include <thread>

#include "wire/shard_grpc_client.h"

namespace meshnet::evidence {
namespace {

constexpr std::chrono::milliseconds kPatience = std::chrono::minutes(2);

template <typename T, typename Call>
T Ask(Call call) {
  auto promise = std::make_shared<std::promise<Reply<T>>>();
  call(std::chrono::steady_clock::now() + kPatience, [promise](Reply<T> reply) { promise->set_value(std::move(reply)); });
  Reply<T> reply = promise->get_future().get();
  if (const auto* fault = std::get_if<TransportFault>(&reply)) ADD_FAILURE() << fault->message;
  return std::holds_alternative<T>(reply) ? std::get<T>(std::move(reply)) : T();
}

}  // namespace

RealRoute::RealRoute(const RouteWish& wish, Starter start, const std::string& folder) : start_(std::move(start)) {
  std::vector<uint32_t> ends = wish.cuts;
  ends.push_back(wish.layer_count);
  uint32_t begin = 0;
  std::vector<ShardLink*> links;
  for (uint32_t end : ends) {
    const std::string address = "unix:" + folder + "/" + std::to_string(begin) + ".sock";
    std::vector<std::string> command = {"worker", "--model", wish.model, "--layers", std::to_string(begin) + ":" + std::to_string(end),
                                        "--listen", address, "--turn-lock", folder + "/turn.lock", "--numerics", wish.numerics,
                                        "--hot-kv-max-sessions", std::to_string(wish.sessions), "-c", std::to_string(wish.context_tokens),
                                        "--hot-kv-budget-tokens",
                                        std::to_string(wish.budget_tokens > 0 ? wish.budget_tokens : wish.sessions * wish.context_tokens),
                                        "--hot-kv-ttl-seconds", std::to_string(wish.ttl_seconds)};
    if (!wish.kv_type.empty()) command.insert(command.end(), {"-ctk", wish.kv_type, "-ctv", wish.kv_type});
    commands_.push_back(command);
    workers_.push_back(start_(command));
    Result<std::unique_ptr<ShardLink>> link = ConnectShard(address, {});
    EXPECT_TRUE(link.ok()) << link.status().message();
    links_.push_back(std::move(*link));
    links.push_back(links_.back().get());
    begin = end;
  }
  route_ = std::make_unique<Route>(links, clock_);
  Status connected;
  process::Eventually([&] { return (connected = route_->Connect(std::chrono::seconds(5))).code() != StatusCode::kPeerUnreachable; }, kPatience);
  EXPECT_TRUE(connected.ok()) << connected.message();
}

RealRoute::~RealRoute() {
  route_.reset();
  links_.clear();
}

void RealRoute::KillAndRestart(size_t stage) {
  workers_[stage]->Signal(SIGKILL);
  workers_[stage]->Wait();
  workers_[stage] = start_(commands_[stage]);
}

ShardDescription RealRoute::Description(size_t stage) {
  return Ask<ShardDescription>([&](Time deadline, auto done) { links_[stage]->Describe(deadline, done); });
}

ShardStats RealRoute::Stats(size_t stage) {
  return Ask<ShardStats>([&](Time deadline, auto done) { links_[stage]->Stats(deadline, done); });
}

uint64_t RealRoute::AnonymousBytes(size_t stage) {
  std::ifstream status("/proc/" + std::to_string(workers_[stage]->pid()) + "/status");
  for (std::string word; status >> word;) {
    uint64_t kilobytes = 0;
    if (word == "RssAnon:" && status >> kilobytes) return kilobytes * 1024;
  }
  return 0;
}

}  // namespace meshnet::evidence
