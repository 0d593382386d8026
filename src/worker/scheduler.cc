#include "worker/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace meshnet {
namespace {

constexpr uint32_t kBackoffMax = 32;
// Below this a wait costs more than the stragglers would save.
constexpr Duration kGatherMin = std::chrono::microseconds(500);
// Answers of one batch come back one after the other: a pause of this length is the end of the burst.
constexpr Duration kBurstPause = std::chrono::milliseconds(1);

}  // namespace

void Scheduler::Queue(const kv::Ticket& ticket, StepShape shape, uint32_t rows) {
  SessionQueue& queue = sessions_[ticket.key];
  if (queue.steps.empty()) queue.place = next_place_++;
  queue.steps.push_back({ticket, shape, rows});
}

void Scheduler::Drop(const kv::Ticket& ticket) {
  auto session = sessions_.find(ticket.key);
  if (session == sessions_.end()) return;
  std::erase_if(session->second.steps, [&](const Queued& step) { return step.ticket == ticket; });
  if (session->second.steps.empty()) sessions_.erase(session);
}

std::vector<const Scheduler::SessionQueue*> Scheduler::Ready(StepShape shape) const {
  std::vector<const SessionQueue*> ready;
  for (const auto& [key, queue] : sessions_) {
    if (queue.steps.front().shape == shape) ready.push_back(&queue);
  }
  std::ranges::sort(ready, {}, &SessionQueue::place);
  return ready;
}

uint32_t Scheduler::CostOf(uint32_t chunk_rows) const { return std::clamp(chunk_rows, config_.chunk_rows_max / 8, config_.chunk_rows_max); }

size_t Scheduler::Expected() const {
  std::vector<SessionKey> all;
  std::ranges::set_union(recent_[0], recent_[1], std::back_inserter(all));
  return std::min<size_t>(all.size(), config_.decode_rows_max);
}

Duration Scheduler::GatherBound() const {
  auto part = [](Duration whole, double share) { return std::chrono::duration_cast<Duration>(whole * share); };
  const Duration longer = std::max(decode_took_[0], decode_took_[1]);
  if (longer == Duration::zero()) return Duration::zero();
  return std::min(config_.gather_max, std::max(part(shortest_decode_, config_.gather_share_of_pass), part(longer, config_.gather_share)));
}

bool Scheduler::Gathers(size_t ready, Time now) {
  if (ready >= Expected() || skip_batches_ > 0 || GatherBound() < kGatherMin) return false;
  if (!gather_until_) {
    StartGathering(ready, now);
  } else if (ready > gather_ready_ && now < *gather_until_) {
    gather_brought_ = true;
    gather_ready_ = ready;
    gather_until_ = std::min(gather_end_, now + kBurstPause);
  }
  return now < *gather_until_;
}

void Scheduler::StartGathering(size_t ready, Time now) {
  gather_ready_ = ready;
  gather_brought_ = false;
  gather_until_ = now + GatherBound();
  gather_end_ = now + config_.gather_max;
}

Scheduler::Plan Scheduler::Next(Time now) {
  std::vector<const SessionQueue*> decodes = Ready(StepShape::kDecode);
  std::vector<const SessionQueue*> chunks = Ready(StepShape::kChunk);
  Plan plan;
  const bool decode_turn = !decodes.empty() && (chunks.empty() || CostOf(chunks.front()->steps.front().rows) > chunk_rows_left_);
  if (decode_turn) {
    if (Gathers(decodes.size(), now)) {
      plan.verdict = Plan::Verdict::kWait;
      plan.until = *gather_until_;
      return plan;
    }
    plan.verdict = Plan::Verdict::kRun;
    plan.shape = StepShape::kDecode;
    decodes.resize(std::min<size_t>(decodes.size(), config_.decode_rows_max));
    for (const SessionQueue* queue : decodes) plan.tickets.push_back(queue->steps.front().ticket);
  } else if (!chunks.empty()) {
    plan.verdict = Plan::Verdict::kRun;
    plan.shape = StepShape::kChunk;
    plan.tickets.push_back(chunks.front()->steps.front().ticket);
  }
  return plan;
}

void Scheduler::Started(const Plan& plan) {
  for (const kv::Ticket& ticket : plan.tickets) {
    auto session = sessions_.find(ticket.key);
    MESHNET_CHECK(session != sessions_.end() && session->second.steps.front().ticket == ticket);
    const Queued& step = session->second.steps.front();
    chunk_rows_left_ =
        step.shape == StepShape::kDecode ? config_.chunk_rows_max : chunk_rows_left_ - std::min(chunk_rows_left_, CostOf(step.rows));
    session->second.steps.pop_front();
    session->second.place = next_place_++;
    if (session->second.steps.empty()) sessions_.erase(session);
  }
}

void Scheduler::Finished(const Plan& plan, Duration took) {
  if (plan.shape != StepShape::kDecode) return;
  const bool complete = plan.tickets.size() >= Expected();
  bool in_vain = false;
  if (skip_batches_ > 0) {
    --skip_batches_;
  } else if (complete || gather_brought_) {
    backoff_ = 0;
  } else if (gather_until_) {
    in_vain = true;
    backoff_ = std::clamp<uint32_t>(backoff_ * 2, 1, kBackoffMax);
    skip_batches_ = backoff_;
  }
  gather_until_.reset();
  gather_brought_ = false;
  regathered_ = false;
  decode_took_[1] = std::exchange(decode_took_[0], took);
  if (took > Duration::zero()) shortest_decode_ = std::min(shortest_decode_, took);
  recent_[1] = std::exchange(recent_[0], {});
  if (in_vain) recent_[1].clear();
  for (const kv::Ticket& ticket : plan.tickets) recent_[0].push_back(ticket.key);
  std::ranges::sort(recent_[0]);
}

bool Scheduler::RegatherAfterTurn(Time now) {
  if (regathered_ || skip_batches_ > 0 || GatherBound() < kGatherMin) return false;
  const Plan plan = Next(now);
  const bool misses_some = plan.verdict == Plan::Verdict::kWait ||
                           (plan.verdict == Plan::Verdict::kRun && plan.shape == StepShape::kDecode && plan.tickets.size() < Expected());
  if (!misses_some) return false;
  regathered_ = true;
  StartGathering(Ready(StepShape::kDecode).size(), now);
  return true;
}

}  // namespace meshnet
