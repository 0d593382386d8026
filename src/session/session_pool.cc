#include "session/session_pool.h"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <utility>

#include "base/check.h"
#include "base/sha256.h"
#include "base/waiting.h"
#include "session/pool_policy.h"

namespace meshnet {
namespace {

struct PooledSession {
  std::unique_ptr<DrivenSession> session;
  std::string owner;
  uint32_t prompt_tokens = 0;
  bool answering = false;
  Time since{};  // idle since then
};

// Equal for equal owners, at most 64 bytes, and tells nobody who the owner is.
std::string SaltOf(const std::string& owner) { return Sha256().Update("meshnet session owner").Update(owner).Digest().Hex().substr(0, 32); }

}  // namespace

const char* Name(TurnRefusal refusal) {
  switch (refusal) {
    case TurnRefusal::kLineFull: return "line-full";
    case TurnRefusal::kDeadline: return "deadline";
    case TurnRefusal::kCancelled: return "cancelled";
    case TurnRefusal::kStopped: return "stopped";
  }
  MESHNET_CHECK(false && "closed enum");
}

struct SessionPool::Impl {
  // What the route holds now, or held when it last served. Under `mutex`.
  void LookAtRoute() {
    std::shared_ptr<const Route::View> view = route.view();
    if (!view) return;
    sessions_max = SessionsThatFit(view->limits);
    truncation_class = view->limits.truncation_class;
    ttl = Duration(0);
    for (const Stage& stage : view->stages) {
      const Duration one = std::chrono::seconds(std::min<uint64_t>(stage.description.limits.ttl_seconds, 1000000000));
      if (one > Duration(0)) ttl = ttl > Duration(0) ? std::min(ttl, one) : one;
    }
  }

  uint32_t answers_max() const { return options.answers_max > 0 ? std::min(options.answers_max, sessions_max) : sessions_max; }
  uint32_t turns_free() const { return answers_max() > answering ? answers_max() - answering : 0; }

  Counts CountsNow();

  enum class Entry { kFirst, kLast, kReserved };  // into the line; kReserved: last too, with a place that is used up so
  std::optional<TurnLine::Ticket> JoinLine(Entry entry);
  std::optional<TurnRefusal> WaitTurn(Entry entry, Time deadline, const std::function<bool()>& cancelled);
  std::unique_ptr<Lease::Held> TakeSession(const std::string& owner, std::span<const Token> prompt,
                                           std::vector<std::unique_ptr<DrivenSession>>& released);
  void GiveBack(uint64_t handle, bool discard);

  Route& route;
  const Clock& clock;
  const SessionPoolOptions options;
  const HopObserver observer;

  mutable std::mutex mutex;  // guards everything below; no session is driven under it
  std::condition_variable changed;
  TurnLine line;
  std::map<uint64_t, PooledSession> sessions;  // by handle
  uint64_t next_handle = 1;
  uint32_t answering = 0;                      // turns taken
  uint32_t reserved = 0;                       // places of callers who will join the line
  uint64_t wakes = 0;
  bool stopped = false;
  Time stop_limit{};                           // once stopped: for sessions to let go of their stages
  uint32_t sessions_max = 1;
  TruncationClass truncation_class = TruncationClass::kFull;
  Duration ttl{0};
};

struct SessionPool::Lease::Held {
  ~Held() { pool.GiveBack(handle, discard); }

  SessionPool::Impl& pool;
  uint64_t handle = 0;
  DrivenSession* session = nullptr;  // owned by the pool while it is leased
  bool discard = false;
};

SessionPool::Counts SessionPool::Impl::CountsNow() {
  LookAtRoute();
  const auto idle = std::count_if(sessions.begin(), sessions.end(), [](const auto& entry) { return !entry.second.answering; });
  return {answering, line.waiting() + reserved, static_cast<uint32_t>(idle), answers_max(), options.waiting_max};
}

std::optional<TurnLine::Ticket> SessionPool::Impl::JoinLine(Entry entry) {
  if (entry == Entry::kFirst) return line.JoinFirst();
  if (entry == Entry::kLast && CountsNow().room() == 0) return std::nullopt;
  return line.Join();
}

// On success the caller has a turn: `answering` counts it.
std::optional<TurnRefusal> SessionPool::Impl::WaitTurn(Entry entry, Time deadline, const std::function<bool()>& cancelled) {
  std::optional<TurnLine::Ticket> ticket;
  uint64_t wakes_seen = 0;  // before `cancelled` was asked last
  for (;;) {
    {
      std::unique_lock lock(mutex);
      LookAtRoute();
      std::optional<TurnRefusal> refusal;
      if (!ticket) {  // only the first time: it gets one, or returns
        if (entry == Entry::kReserved) --reserved;
        if (!stopped && !(ticket = JoinLine(entry))) return TurnRefusal::kLineFull;
      }
      auto ready = [&] { return stopped || line.MayGo(*ticket, turns_free()); };
      auto looks_up = [&] { return ready() || wakes != wakes_seen; };
      const Duration patience = std::clamp<Duration>(deadline - clock.Now(), Duration(0), kPollInterval);
      if (!stopped) clock.waiting().WaitFor(changed, lock, patience, looks_up);
      wakes_seen = wakes;
      if (stopped) refusal = TurnRefusal::kStopped;
      else if (!ready() && clock.Now() >= deadline) refusal = TurnRefusal::kDeadline;
      if (refusal || ready()) {
        if (ticket) line.Leave(*ticket);
        if (!refusal) ++answering;
        lock.unlock();
        clock.waiting().Notify(changed);
        return refusal;
      }
    }
    if (cancelled && cancelled()) {
      std::lock_guard lock(mutex);
      line.Leave(*ticket);
      clock.waiting().Notify(changed);
      return TurnRefusal::kCancelled;
    }
  }
}

// Under a turn. The sessions that make room are moved out for the caller to release.
std::unique_ptr<SessionPool::Lease::Held> SessionPool::Impl::TakeSession(const std::string& owner, std::span<const Token> prompt,
                                                                         std::vector<std::unique_ptr<DrivenSession>>& released) {
  std::lock_guard lock(mutex);
  std::vector<IdleSession> idle;
  for (const auto& [handle, pooled] : sessions) {
    if (!pooled.answering) idle.push_back({handle, pooled.owner, pooled.session->journal(), pooled.prompt_tokens, pooled.since});
  }
  SessionWish wish{owner, prompt, truncation_class, ttl, clock.Now(), static_cast<uint32_t>(sessions.size()), sessions_max};
  const SessionChoice choice = ChooseSession(idle, wish);
  for (uint64_t handle : choice.release) {
    released.push_back(std::move(sessions.at(handle).session));
    sessions.erase(handle);
  }
  const uint64_t handle = choice.reuse ? *choice.reuse : next_handle++;
  PooledSession& pooled = sessions[handle];
  if (!choice.reuse) {
    pooled.session = std::make_unique<DrivenSession>(route, clock, options.driver, SaltOf(owner), observer);
    pooled.owner = owner;
  }
  if (stopped) pooled.session->HurryBy(stop_limit);
  pooled.answering = true;
  pooled.prompt_tokens = static_cast<uint32_t>(prompt.size());
  return std::unique_ptr<Lease::Held>(new Lease::Held{*this, handle, pooled.session.get(), false});
}

void SessionPool::Impl::GiveBack(uint64_t handle, bool discard) {
  DrivenSession* session = nullptr;
  {
    std::lock_guard lock(mutex);
    session = sessions.at(handle).session.get();
    discard = discard || stopped;
  }
  // One that holds nothing is only a reservation. The turn is given on when the stages have let go, so that whoever is next finds room.
  discard = discard || session->ended() || session->past_len() == PastLen(0);
  if (discard && !session->ended()) session->Release(options.release_timeout);
  {
    std::lock_guard lock(mutex);
    PooledSession& pooled = sessions.at(handle);
    pooled.answering = false;
    pooled.since = clock.Now();
    if (discard) sessions.erase(handle);
    --answering;
  }
  clock.waiting().Notify(changed);
}

SessionPool::Lease::Lease(std::unique_ptr<Held> held) : held_(std::move(held)) {}
SessionPool::Lease::Lease(Lease&& other) noexcept = default;
SessionPool::Lease& SessionPool::Lease::operator=(Lease&& other) noexcept = default;
SessionPool::Lease::~Lease() = default;

DrivenSession& SessionPool::Lease::session() { return *held_->session; }
void SessionPool::Lease::Discard() { held_->discard = true; }

SessionPool::SessionPool(Route& route, const Clock& clock, SessionPoolOptions options, HopObserver observer)
    : impl_(new Impl{route, clock, options, std::move(observer), {}, {}, {}, {}}) {}

SessionPool::~SessionPool() {
  Stop(impl_->options.release_timeout);
  MESHNET_CHECK(impl_->answering == 0);  // a lease would point into the void
}

std::variant<SessionPool::Lease, TurnRefusal> SessionPool::Acquire(const std::string& owner, std::span<const Token> prompt, Time deadline,
                                                                   const std::function<bool()>& cancelled) {
  if (std::optional<TurnRefusal> refusal = impl_->WaitTurn(Impl::Entry::kLast, deadline, cancelled)) return *refusal;
  return TakeLease(owner, prompt);
}

std::variant<SessionPool::Lease, TurnRefusal> SessionPool::AcquireAt(Place place, const std::string& owner, std::span<const Token> prompt,
                                                                     Time deadline, const std::function<bool()>& cancelled) {
  MESHNET_CHECK(place.pool_ == impl_.get());
  place.pool_ = nullptr;
  if (std::optional<TurnRefusal> refusal = impl_->WaitTurn(Impl::Entry::kReserved, deadline, cancelled)) return *refusal;
  return TakeLease(owner, prompt);
}

std::variant<SessionPool::Lease, TurnRefusal> SessionPool::AcquireFirst(const std::string& owner, std::span<const Token> prompt, Time deadline,
                                                                        const std::function<bool()>& cancelled) {
  if (std::optional<TurnRefusal> refusal = impl_->WaitTurn(Impl::Entry::kFirst, deadline, cancelled)) return *refusal;
  return TakeLease(owner, prompt);
}

SessionPool::Lease SessionPool::TakeLease(const std::string& owner, std::span<const Token> prompt) {
  std::vector<std::unique_ptr<DrivenSession>> released;
  Lease lease(impl_->TakeSession(owner, prompt, released));
  for (const std::unique_ptr<DrivenSession>& session : released) session->Release(impl_->options.release_timeout);
  return lease;
}

void SessionPool::Wake() {
  {
    std::lock_guard lock(impl_->mutex);
    ++impl_->wakes;
    for (const auto& [handle, pooled] : impl_->sessions) {
      if (pooled.answering) pooled.session->Wake();
    }
  }
  impl_->clock.waiting().Notify(impl_->changed);
}

SessionPool::Counts SessionPool::counts() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->CountsNow();
}

std::variant<std::vector<SessionPool::Place>, SessionPool::Counts> SessionPool::Reserve(size_t count) {
  std::vector<Place> places;
  places.reserve(count);
  std::lock_guard lock(impl_->mutex);
  const Counts counts = impl_->CountsNow();
  if (count > counts.room()) return counts;
  impl_->reserved += static_cast<uint32_t>(count);
  for (size_t i = 0; i < count; ++i) places.push_back(Place(*impl_));
  return places;
}

uint64_t SessionPool::Counts::room() const {
  const uint64_t taken = uint64_t{answering} + waiting;
  return places_max() > taken ? places_max() - taken : 0;
}

SessionPool::Place::Place(Place&& other) noexcept : pool_(std::exchange(other.pool_, nullptr)) {}
SessionPool::Place& SessionPool::Place::operator=(Place&& other) noexcept {
  if (this == &other) return *this;
  GiveBack();
  pool_ = std::exchange(other.pool_, nullptr);
  return *this;
}
SessionPool::Place::~Place() { GiveBack(); }

void SessionPool::Place::GiveBack() {
  Impl* const pool = std::exchange(pool_, nullptr);
  if (pool == nullptr) return;
  std::lock_guard lock(pool->mutex);
  --pool->reserved;
}

std::vector<SessionPool::SessionInfo> SessionPool::Sessions() const {
  std::lock_guard lock(impl_->mutex);
  const Time now = impl_->clock.Now();
  std::vector<SessionInfo> infos;
  for (const auto& [handle, pooled] : impl_->sessions) {
    const double idle = pooled.answering ? 0 : std::chrono::duration<double>(now - pooled.since).count();
    infos.push_back({IdPrefix(pooled.session->id()), pooled.owner, pooled.session->epoch(), pooled.session->past_len(), pooled.answering, idle});
  }
  return infos;
}

void SessionPool::Stop(Duration timeout) {
  const Time deadline = impl_->clock.Now() + timeout;
  std::vector<std::unique_ptr<DrivenSession>> idle;
  {
    std::lock_guard lock(impl_->mutex);
    impl_->stopped = true;
    impl_->stop_limit = deadline;
    for (auto& [handle, pooled] : impl_->sessions) {
      if (pooled.answering) pooled.session->HurryBy(deadline);
      else idle.push_back(std::move(pooled.session));
    }
    std::erase_if(impl_->sessions, [](const auto& entry) { return !entry.second.answering; });
  }
  impl_->clock.waiting().Notify(impl_->changed);
  for (const std::unique_ptr<DrivenSession>& session : idle) session->Release(std::max(Duration(0), deadline - impl_->clock.Now()));
}

}  // namespace meshnet
