#include "kv/tombstones.h"

#include "base/check.h"

namespace meshnet::kv {

const char* Name(SessionEnd end) {
  switch (end) {
    case SessionEnd::kReleased: return "released";
    case SessionEnd::kEvictedLru: return "evicted-lru";
    case SessionEnd::kEvictedTtl: return "evicted-ttl";
    case SessionEnd::kSuperseded: return "superseded";
    case SessionEnd::kLost: return "lost";
    case SessionEnd::kDrained: return "drained";
  }
  MESHNET_CHECK(false && "closed enum");
}

Detail DetailOf(SessionEnd end) {
  switch (end) {
    case SessionEnd::kEvictedLru: return Detail::kEvictedLru;
    case SessionEnd::kEvictedTtl: return Detail::kEvictedTtl;
    case SessionEnd::kLost: return Detail::kLost;
    case SessionEnd::kDrained: return Detail::kDrained;
    case SessionEnd::kReleased:
    case SessionEnd::kSuperseded: return Detail::kNoSession;
  }
  MESHNET_CHECK(false && "closed enum");
}

const Tombstone* Tombstones::Find(const SessionId& session) const {
  auto found = by_session_.find(session);
  return found == by_session_.end() ? nullptr : &found->second;
}

void Tombstones::Put(const SessionId& session, const Tombstone& tombstone) {
  Erase(session);
  if (by_session_.size() >= count_max_) Erase(SessionId(by_age_.begin()->second));
  by_session_.emplace(session, tombstone);
  by_age_.emplace(tombstone.since, session);
}

void Tombstones::Erase(const SessionId& session) {
  auto found = by_session_.find(session);
  if (found == by_session_.end()) return;
  by_age_.erase({found->second.since, session});
  by_session_.erase(found);
}

void Tombstones::Expire(Time now) {
  while (!by_age_.empty() && now - by_age_.begin()->first >= lifetime_) Erase(SessionId(by_age_.begin()->second));
}

std::optional<Time> Tombstones::next_expiry() const {
  if (by_age_.empty()) return std::nullopt;
  return by_age_.begin()->first + lifetime_;
}

}  // namespace meshnet::kv
