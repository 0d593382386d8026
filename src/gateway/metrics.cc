#include "gateway/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <cmath>

namespace meshnet::gateway {
namespace {

using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Histogram;

constexpr size_t kStagesMax = 256;     // more layers than any route has stages; beyond it hops are not told apart
constexpr size_t kRecentHops = 1024;

const Histogram::BucketBoundaries kLongTimes = {0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300};
const Histogram::BucketBoundaries kShortTimes = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10};

struct Hop {
  Histogram* histogram = nullptr;
  std::array<float, kRecentHops> recent{};
  size_t count = 0;  // ever; the ring holds the latest
};

// What one worker process has counted so far.
struct WorkerCounts {
  Incarnation incarnation;
  std::map<std::string, uint64_t> evictions, refusals;
};

}  // namespace

struct Metrics::Impl {
  prometheus::Registry registry;
  Counter& prompt_tokens = Count("meshnet_prompt_tokens_total", "Prompt tokens of answered requests");
  Counter& cached_tokens = Count("meshnet_prompt_tokens_cached_total", "Prompt tokens that a session already held");
  Counter& generated_tokens = Count("meshnet_generated_tokens_total", "Tokens sampled for answers");
  Counter& replays = Count("meshnet_replays_total", "Times an answer computed its prefix again after a stage lost it");
  prometheus::Family<Counter>& evictions = prometheus::BuildCounter()
      .Name("meshnet_session_evictions_total").Help("Sessions that workers gave up, by reason").Register(registry);
  prometheus::Family<Counter>& refusals = prometheus::BuildCounter()
      .Name("meshnet_refusals_total").Help("Requests and steps refused, by reason").Register(registry);
  Gauge& running = Level("meshnet_requests_running", "Answers being made");
  Gauge& waiting = Level("meshnet_requests_waiting", "Answers waiting for a session");
  Gauge& kv_reserved = Level("meshnet_kv_tokens_reserved", "KV tokens reserved, summed over workers");
  Gauge& kv_used = Level("meshnet_kv_tokens_used", "KV tokens held, summed over workers");
  Histogram& first_token = Times("meshnet_time_to_first_token_seconds", "From request to first sampled token", kLongTimes);
  Histogram& inter_token = Times("meshnet_inter_token_latency_seconds", "Between two tokens of one answer", kShortTimes);
  Histogram& queue = Times("meshnet_queue_seconds", "Waiting for a session", kLongTimes);
  prometheus::Family<Histogram>& hops = prometheus::BuildHistogram()
      .Name("meshnet_hop_seconds").Help("One call of a stage, by its place in the route").Register(registry);

  mutable std::mutex mutex;  // guards what follows
  std::vector<std::unique_ptr<Hop>> recent_hops{kStagesMax};
  std::map<std::string, WorkerCounts> workers;

  Counter& Count(const char* name, const char* help) { return prometheus::BuildCounter().Name(name).Help(help).Register(registry).Add({}); }
  Gauge& Level(const char* name, const char* help) { return prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add({}); }
  Histogram& Times(const char* name, const char* help, const Histogram::BucketBoundaries& buckets) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add({}, buckets);
  }
};

Metrics::Metrics() : impl_(std::make_unique<Impl>()) {
  // Series exist from the start, so that a rate over the first event is not lost.
  for (const char* reason : {"lru", "ttl", "superseded", "lost"}) impl_->evictions.Add({{"reason", reason}});
  impl_->refusals.Add({{"reason", "queue-full"}});
}

Metrics::~Metrics() = default;

void Metrics::CountAnswer(uint32_t prompt_tokens, uint32_t cached_tokens, uint32_t generated_tokens, uint32_t replays) {
  impl_->prompt_tokens.Increment(prompt_tokens);
  impl_->cached_tokens.Increment(cached_tokens);
  impl_->generated_tokens.Increment(generated_tokens);
  impl_->replays.Increment(replays);
}

void Metrics::CountRefusal(const std::string& reason) { impl_->refusals.Add({{"reason", reason}}).Increment(); }
void Metrics::ObserveFirstToken(double seconds) { impl_->first_token.Observe(seconds); }
void Metrics::ObserveInterToken(double seconds) { impl_->inter_token.Observe(seconds); }
void Metrics::ObserveQueue(double seconds) { impl_->queue.Observe(seconds); }

void Metrics::ObserveHop(size_t stage, double seconds) {
  if (!std::isfinite(seconds)) return;
  stage = std::min(stage, kStagesMax - 1);
  Histogram* histogram = nullptr;
  {
    std::lock_guard lock(impl_->mutex);
    std::unique_ptr<Hop>& hop = impl_->recent_hops[stage];
    if (!hop) {
      hop = std::make_unique<Hop>();
      hop->histogram = &impl_->hops.Add({{"stage", std::to_string(stage)}}, kShortTimes);
    }
    hop->recent[hop->count++ % kRecentHops] = static_cast<float>(seconds);
    histogram = hop->histogram;
  }
  histogram->Observe(seconds);
}

void Metrics::SetLoad(uint32_t running, uint32_t waiting) {
  impl_->running.Set(running);
  impl_->waiting.Set(waiting);
}

void Metrics::UpdateWorkers(const std::map<std::string, ShardStats>& stats) {
  uint64_t reserved = 0, used = 0;
  std::lock_guard lock(impl_->mutex);
  for (const auto& [address, now] : stats) {
    reserved += now.kv_tokens_reserved;
    used += now.kv_tokens_used;
    WorkerCounts& before = impl_->workers[address];
    if (before.incarnation != now.incarnation) before = {now.incarnation, {}, {}};
    auto grow = [](prometheus::Family<Counter>& family, const std::string& reason, uint64_t count, uint64_t* seen) {
      if (count > *seen) family.Add({{"reason", reason}}).Increment(static_cast<double>(count - *seen));
      *seen = std::max(*seen, count);
    };
    grow(impl_->evictions, "lru", now.evictions_lru, &before.evictions["lru"]);
    grow(impl_->evictions, "ttl", now.evictions_ttl, &before.evictions["ttl"]);
    grow(impl_->evictions, "superseded", now.evictions_superseded, &before.evictions["superseded"]);
    grow(impl_->evictions, "lost", now.sessions_lost, &before.evictions["lost"]);
    for (const auto& [reason, count] : now.refusals) grow(impl_->refusals, reason, count, &before.refusals[reason]);
  }
  impl_->kv_reserved.Set(static_cast<double>(reserved));
  impl_->kv_used.Set(static_cast<double>(used));
}

Metrics::HopTimes Metrics::Hops(size_t stage) const {
  std::vector<float> recent;
  {
    std::lock_guard lock(impl_->mutex);
    if (stage >= kStagesMax || !impl_->recent_hops[stage]) return {};
    const Hop& hop = *impl_->recent_hops[stage];
    recent.assign(hop.recent.begin(), hop.recent.begin() + static_cast<ptrdiff_t>(std::min(hop.count, kRecentHops)));
  }
  std::sort(recent.begin(), recent.end());
  auto at = [&](double quantile) { return static_cast<double>(recent[static_cast<size_t>(quantile * static_cast<double>(recent.size() - 1))]); };
  return {at(0.5), at(0.99)};
}

std::string Metrics::Text() const { return prometheus::TextSerializer().Serialize(impl_->registry.Collect()); }

}  // namespace meshnet::gateway
