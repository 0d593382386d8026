// The sessions a gateway keeps on its route: who may answer now, and which idle session an owner's next prompt continues.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "session/route.h"
#include "session/session_driver.h"

namespace meshnet {

struct SessionPoolOptions {
  uint32_t answers_max = 0;        // answers at once; 0: as many as the route's sessions and token budget hold at full context
  uint32_t waiting_max = 64;       // callers in line for a turn; one more is refused at once
  Duration release_timeout = std::chrono::seconds(2);  // of the idle session that makes room for a new one
  DriverOptions driver;
};

// Why there is no lease.
enum class TurnRefusal {
  kLineFull,   // waiting_max callers wait already
  kDeadline,   // the turn did not come in time
  kCancelled,  // the caller's own `cancelled` said so
  kStopped,    // the pool was stopped
};
const char* Name(TurnRefusal refusal);

// Thread-safe. At most `answers_max` leases are out at once; callers wait in line, first come first served. A session serves one owner for its
// whole life: another owner's prompt never finds it, and its digests are salted with the owner's name.
class SessionPool {
  struct Impl;

 public:
  // The right to answer once, with the session to do it on. Give it back by destroying it: the session then stays idle for the owner's next
  // prompt, unless Discard was called or the session has ended. Not thread-safe; must not outlive the pool. Never wait for a second lease
  // while holding one: two callers could wait for each other.
  class Lease {
   public:
    Lease(Lease&& other) noexcept;
    Lease& operator=(Lease&& other) noexcept;
    ~Lease();

    DrivenSession& session();
    // The session is released on every stage instead of kept: nothing of it should be reused.
    void Discard();

   private:
    friend class SessionPool;
    struct Held;
    explicit Lease(std::unique_ptr<Held> held);
    std::unique_ptr<Held> held_;
  };

  // The right to wait in line for one turn. It gives itself back when it is not used. Not thread-safe; must not outlive the pool.
  class Place {
   public:
    Place(Place&& other) noexcept;
    Place& operator=(Place&& other) noexcept;
    ~Place();

   private:
    friend class SessionPool;
    explicit Place(Impl& pool) : pool_(&pool) {}
    void GiveBack();
    Impl* pool_;
  };

  // `route`, `clock` outlive the pool.
  SessionPool(Route& route, const Clock& clock, SessionPoolOptions options, HopObserver observer = {});
  // Stops; all leases must be back.
  ~SessionPool();

  // Blocks until it is this caller's turn, then hands out the owner's idle session that holds the most of `prompt`, or a new one (releasing the
  // least recently used idle session when there is no room). `cancelled` (may be null) is asked after each Wake and at least every 250 ms.
  std::variant<Lease, TurnRefusal> Acquire(const std::string& owner, std::span<const Token> prompt, Time deadline,
                                           const std::function<bool()>& cancelled);

  // The same for one who has a place already: never kLineFull.
  std::variant<Lease, TurnRefusal> AcquireAt(Place place, const std::string& owner, std::span<const Token> prompt, Time deadline,
                                             const std::function<bool()>& cancelled);

  // The same before everybody who waits, however many: for the one who finds out whether the route answers at all.
  std::variant<Lease, TurnRefusal> AcquireFirst(const std::string& owner, std::span<const Token> prompt, Time deadline,
                                                const std::function<bool()>& cancelled);

  // Every caller that waits, in line or in its session's Answer, asks at once whether it is cancelled.
  void Wake();

  struct Counts {
    uint32_t answering = 0;
    uint32_t waiting = 0;      // places that are taken and not used yet included
    uint32_t idle = 0;
    uint32_t answers_max = 0;  // as of the route now
    uint32_t waiting_max = 0;
    // Callers that are let in now, and that ever could be: those who answer and those who wait.
    uint64_t room() const;
    uint64_t places_max() const { return uint64_t{answers_max} + waiting_max; }
  };
  Counts counts() const;

  // All places that one request needs, or none of them: half a request in line would only be in others' way. Without room for all, what there is.
  std::variant<std::vector<Place>, Counts> Reserve(size_t count);

  struct SessionInfo {
    std::string id_prefix;   // safe to show
    std::string owner;
    Epoch epoch;
    PastLen past_len;        // committed on every stage
    bool answering = false;
    double idle_seconds = 0;
  };
  std::vector<SessionInfo> Sessions() const;

  // Those in line return kStopped, later callers too; idle sessions are released as far as the stages answer within `timeout`. Answers go on, but
  // once they end or are cancelled they wait for their stages no longer than that.
  void Stop(Duration timeout);

 private:
  Lease TakeLease(const std::string& owner, std::span<const Token> prompt);

  std::unique_ptr<Impl> impl_;
};

}  // namespace meshnet
