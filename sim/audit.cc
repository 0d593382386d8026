#include "audit.h"

namespace meshnet::sim {
namespace {

// A worker remembers the fence of a session that ended for at least so long.
constexpr Duration kRemembered = std::chrono::minutes(10);

}  // namespace

void Audit::Fail(const SessionKey& key, const std::string& what) {
  checker_.Fail(who_ + ": session " + IdPrefix(key.session) + " epoch " + std::to_string(key.epoch.value) + ": " + what);
}

void Audit::CheckFence(const SessionKey& key, Time now, const char* what) {
  Fence& fence = fences_[key.session];
  const bool forgotten = fence.epoch == Epoch(0) || now - fence.seen >= kRemembered;
  if (key.epoch < fence.epoch && !forgotten) Fail(key, std::string(what) + " below the fence " + std::to_string(fence.epoch.value));
  if (key.epoch < fence.epoch && !forgotten) return;
  if (forgotten) {
    std::erase_if(commits_, [&](const auto& commit) { return commit.first.first.session == key.session; });
    std::erase_if(last_, [&](const auto& last) { return last.first.session == key.session; });
  }
  fence = {key.epoch, now};
}

void Audit::OnOpen(const SessionKey& key, Time now) { CheckFence(key, now, "was opened"); }

void Audit::OnResult(const SessionKey& key, const RecordedResult& recorded, Time now) {
  if (!recorded.replayed) CheckFence(key, now, "has committed");
  const StepSeq seq = recorded.result->seq;
  std::shared_ptr<const StepResult>& known = commits_[{key, seq}];
  if (known == recorded.result) return;  // a replay, or a second caller of the same step
  const std::string step = "step " + std::to_string(seq.value);
  if (known) Fail(key, step + (recorded.replayed ? " was replayed with another result" : " was committed twice"));
  known = recorded.result;
  // A commit may have had no caller any more, so some are first seen as a replay; but what is new comes in order.
  if (recorded.replayed) return;
  StepSeq& last = last_[key];
  if (seq <= last) Fail(key, step + " was committed after step " + std::to_string(last.value));
  last = seq;
}

}  // namespace meshnet::sim
