// A gateway process: the real route, session pool and session drivers over the links of the run, and the clients that ask it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "link.h"
#include "process_time.h"
#include "session/route.h"
#include "session/session_pool.h"
#include "worker.h"
#include "world.h"

namespace meshnet::sim {

class Gateway {
 public:
  // What a client sees of it.
  struct Door {
    Route& route;
    SessionPool& pool;
  };

  Gateway(World& world, uint8_t number, const std::vector<std::unique_ptr<Worker>>& workers);
  ~Gateway();

  // Its clients begin to ask.
  void Start();
  // It says nothing more; its clients are gone with it.
  void Die();
  void Pause(Duration duration);
  // A client of this gateway opens a session that another drives, at a higher epoch; or at the same.
  void TakeOver(const SessionId& session) { to_take_over_.push_back(session); }
  void Collide(const SessionId& session) { to_collide_.push_back(session); }

  bool dead() const { return dead_; }
  // All clients got what they wanted and have gone; nothing of it runs any more.
  bool done() const { return done_; }
  Place place() const { return {'g', number_}; }
  ProcessTime& time() { return time_; }
  Link& link(size_t stage) { return *links_.at(stage); }
  // Of a new session, random by the run's seed.
  SessionKey NameSession();

 private:
  void Live();
  SessionPoolOptions PoolOptions();

  World& world_;
  const uint8_t number_;
  ProcessTime time_;
  std::vector<std::unique_ptr<Link>> links_;
  bool dead_ = false;
  bool done_ = false;
  std::vector<SessionId> to_take_over_;
  std::vector<SessionId> to_collide_;
  std::unique_ptr<Waiting::Background> life_;
};

}  // namespace meshnet::sim
