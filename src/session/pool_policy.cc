#include "session/pool_policy.h"

#include <algorithm>

#include "session/journal.h"

namespace meshnet {
namespace {

// Of the prompt, what the session need not compute again.
uint32_t UsablePrefix(const IdleSession& session, const SessionWish& wish) {
  const uint32_t common = CommonPrefix(session.journal, wish.prompt);
  if (wish.truncation_class != TruncationClass::kWhole) return common;
  // A recurrent state only goes on where it is, and the last token of the prompt has to be computed.
  return common == session.journal.size() && common < wish.prompt.size() ? common : 0;
}

bool WorthReusing(const IdleSession& session, uint32_t usable, const SessionWish& wish) {
  if (usable == 0) return false;
  const bool same_conversation = session.prompt_tokens > 0 && usable >= session.prompt_tokens;
  return same_conversation || usable == wish.prompt.size() || usable >= session.journal.size() - usable;
}

}  // namespace

TurnLine::Ticket TurnLine::Join() {
  line_.push_back(next_);
  return next_++;
}

TurnLine::Ticket TurnLine::JoinFirst() {
  line_.push_front(next_);
  return next_++;
}

void TurnLine::Leave(Ticket ticket) { std::erase(line_, ticket); }

uint32_t SessionsThatFit(const RouteLimits& limits) {
  const uint32_t by_budget = limits.context_tokens == 0 ? 0 : limits.budget_tokens / limits.context_tokens;
  return std::max(1u, std::min(limits.sessions_max, by_budget));
}

SessionChoice ChooseSession(std::span<const IdleSession> idle, const SessionWish& wish) {
  SessionChoice choice;
  const IdleSession* best = nullptr;
  uint32_t best_usable = 0;
  std::vector<const IdleSession*> others;
  for (const IdleSession& session : idle) {
    if (wish.ttl > Duration::zero() && wish.now - session.since >= wish.ttl) {
      choice.release.push_back(session.handle);
      continue;
    }
    others.push_back(&session);
    if (session.owner != wish.owner) continue;
    const uint32_t usable = UsablePrefix(session, wish);
    const bool better = usable > best_usable || (usable == best_usable && best != nullptr && session.journal.size() < best->journal.size());
    if (!WorthReusing(session, usable, wish) || !better) continue;
    best = &session;
    best_usable = usable;
  }
  if (best != nullptr) {
    choice.reuse = best->handle;
    return choice;
  }
  std::stable_sort(others.begin(), others.end(), [](const IdleSession* a, const IdleSession* b) { return a->since < b->since; });
  for (const IdleSession* oldest : others) {
    if (wish.live - choice.release.size() < wish.live_max) break;
    // Before the owner's own oldest session goes, what little it shares with the prompt is better than nothing.
    if (oldest->owner == wish.owner && UsablePrefix(*oldest, wish) > 0) {
      choice.reuse = oldest->handle;
      break;
    }
    choice.release.push_back(oldest->handle);
  }
  return choice;
}

}  // namespace meshnet
