#include "audit.h"

#include "protocol/prefix_digest.h"

namespace meshnet::sim {
namespace {

// A worker remembers the fence of a session that ended for at least so long.
constexpr Duration kRemembered = std::chrono::minutes(10);

}  // namespace

void Prefixes::Begin(const SessionId& session, const std::string& cache_salt) {
  logs_.try_emplace(DigestOfPrefix(cache_salt, {}), Log{cache_salt, {}});
  newest_.try_emplace(session, Log{cache_salt, {}});
}

const Prefixes::Log* Prefixes::Find(const Step& step) {
  if (const auto known = logs_.find(step.prefix_digest); known != logs_.end()) return &known->second;
  const auto newest = newest_.find(step.key.session);
  if (newest == newest_.end() || newest->second.tokens.size() < step.start.value) return nullptr;
  Log shorter = newest->second;
  shorter.tokens.resize(step.start.value);
  if (DigestOfPrefix(shorter.cache_salt, shorter.tokens) != step.prefix_digest) return nullptr;
  return &logs_.try_emplace(step.prefix_digest, std::move(shorter)).first->second;
}

std::optional<PrefixDigest> Prefixes::Extend(const Step& step) {
  const Log* known = Find(step);
  if (known == nullptr || known->tokens.size() != step.start.value) return std::nullopt;
  Log longer = *known;
  longer.tokens.insert(longer.tokens.end(), step.tokens.begin(), step.tokens.end());
  const PrefixDigest digest = DigestOfPrefix(longer.cache_salt, longer.tokens);
  newest_[step.key.session] = longer;
  logs_.try_emplace(digest, std::move(longer));
  return digest;
}

SentStep NoteSent(const Step& step, Prefixes& prefixes) {
  const PastLen end(step.start.value + static_cast<uint32_t>(step.tokens.size()));
  SentStep sent;
  sent.key = step.key;
  sent.incarnation = step.incarnation;
  sent.seq = step.seq;
  sent.start = step.start;
  sent.end = end;
  sent.digest = prefixes.Extend(step);
  return sent;
}

void Audit::Fail(const SessionKey& key, const std::string& what) {
  checker_.Fail(who_ + ": session " + IdPrefix(key.session) + " epoch " + std::to_string(key.epoch.value) + ": " + what);
}

bool Audit::IsBelowFence(const SessionKey& key, Time now) const {
  const auto fence = fences_.find(key.session);
  return fence != fences_.end() && key.epoch < fence->second.epoch && now - fence->second.seen < kRemembered;
}

void Audit::RaiseFence(const SessionKey& key, Time now, const char* what) {
  if (IsBelowFence(key, now)) return Fail(key, std::string(what) + " below the fence " + std::to_string(fences_[key.session].epoch.value));
  Fence& fence = fences_[key.session];
  if (now - fence.seen >= kRemembered) {
    std::erase_if(commits_, [&](const auto& commit) { return commit.first.first.session == key.session; });
    std::erase_if(last_, [&](const auto& last) { return last.first.session == key.session; });
  }
  fence = {key.epoch, now};
}

void Audit::OnOpen(const SessionKey& key, Time now) { RaiseFence(key, now, "was opened"); }

void Audit::OnSubmit(SentStep& step, Time now) const {
  step.below_fence = IsBelowFence(step.key, now);
  step.other_process = step.incarnation != incarnation_;
}

void Audit::OnAnswer(const SentStep& step, const StepAnswer& answer, Time now) {
  if (const auto* recorded = std::get_if<RecordedResult>(&answer.outcome)) return OnResult(step, *recorded, now);
  const Refusal& refusal = std::get<Refusal>(answer.outcome);
  // A worker may remember a fence for longer than it has to.
  if (refusal.reason == Reason::kEpochStale) return;
  if (step.below_fence) {
    Fail(step.key, std::string("a step below the fence was refused as ") + Name(refusal.reason));
  } else if (step.other_process && refusal.detail != Detail::kIncarnation) {
    Fail(step.key, std::string("a step for an earlier process was refused as ") + Name(refusal.reason));
  }
}

void Audit::OnResult(const SentStep& step, const RecordedResult& recorded, Time now) {
  const SessionKey& key = step.key;
  const StepResult& result = *recorded.result;
  const std::string name = "step " + std::to_string(step.seq.value);
  if (step.below_fence || step.other_process) return Fail(key, name + " ran, although it is not of this time");
  if (result.seq != step.seq) Fail(key, name + " was answered with the result of step " + std::to_string(result.seq.value));
  if (result.past_len != step.end) Fail(key, name + " ended at " + std::to_string(result.past_len.value) + " instead of " + std::to_string(step.end.value));
  if (step.forged || (step.digest && result.digest != *step.digest)) Fail(key, name + " ran on another prefix than it names");
  if (!recorded.replayed) RaiseFence(key, now, "has committed");

  std::shared_ptr<const StepResult>& known = commits_[{key, step.seq}];
  if (known == recorded.result) return;  // a replay, or a second caller of the same step
  if (known) Fail(key, name + (recorded.replayed ? " was replayed with another result" : " was committed twice"));
  known = recorded.result;
  // A commit may have had no caller any more, so some are first seen as a replay; but what is new comes in order.
  if (recorded.replayed) return;
  StepSeq& last = last_[key];
  if (step.seq <= last) Fail(key, name + " was committed after step " + std::to_string(last.value));
  last = step.seq;
}

void Audit::OnRelease(const SessionKey& key, ReleaseOutcome outcome, Time now) {
  if (IsBelowFence(key, now) && outcome != ReleaseOutcome::kEpochStale) Fail(key, std::string("a release below the fence was answered as ") + Name(outcome));
}

}  // namespace meshnet::sim
