#include "gateway.h"

#include <utility>

#include "client.h"

namespace meshnet::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr size_t kNamesMax = 32;
constexpr size_t kClientsMax = 10;  // in a gateway's life, those that come to take over included

}  // namespace

Gateway::Gateway(World& world, uint8_t number, const std::vector<std::unique_ptr<Worker>>& workers) : world_(world), number_(number), time_(world.loop) {
  for (const auto& worker : workers) links_.push_back(std::make_unique<Link>(world, place(), time_, *worker));
}

Gateway::~Gateway() = default;

SessionKey Gateway::NameSession() {
  const SessionKey name{world_.random.Name<SessionId>(), Epoch(0)};
  if (world_.sessions.size() == kNamesMax) world_.sessions.erase(world_.sessions.begin());
  world_.sessions.push_back(name.session);
  return name;
}

SessionPoolOptions Gateway::PoolOptions() {
  SessionPoolOptions options;
  options.answers_max = world_.swarm.answers_max;
  options.waiting_max = world_.swarm.waiting_max;
  options.driver = world_.swarm.driver;
  options.driver.name = [this] { return NameSession(); };
  return options;
}

void Gateway::Start() {
  life_ = time_.Start([this] { Live(); });
}

void Gateway::Live() {
  std::vector<ShardLink*> links;
  for (const auto& link : links_) links.push_back(link.get());
  {
    Route route(links, time_);
    (void)route.Connect(seconds(2));
    SessionPool pool(route, time_, PoolOptions());
    const Door door{route, pool};
    std::vector<std::unique_ptr<Client>> clients;
    std::vector<std::unique_ptr<Waiting::Background>> lives;
    const auto add = [&](std::unique_ptr<Client> client) {
      clients.push_back(std::move(client));
      lives.push_back(time_.Start([client = clients.back().get()] { client->Live(); }));
    };
    for (uint32_t i = 0; i < world_.swarm.pool_clients; ++i) add(std::make_unique<Client>(world_, *this, door, ClientKind::kPool));
    for (uint32_t i = 0; i < world_.swarm.own_clients; ++i) add(std::make_unique<Client>(world_, *this, door, ClientKind::kOwn));
    while (!world_.healed && !dead_) {
      time_.Sleep(milliseconds(200));
      if (clients.size() > kClientsMax) continue;
      for (const SessionId& session : std::exchange(to_take_over_, {})) add(std::make_unique<Client>(world_, *this, door, ClientKind::kTakesOver, session));
      for (const SessionId& session : std::exchange(to_collide_, {})) add(std::make_unique<Client>(world_, *this, door, ClientKind::kCollides, session));
    }
    lives.clear();
    pool.Stop(seconds(5));
  }
  done_ = true;
}

void Gateway::Die() {
  world_.Note({What::kGatewayDies, place()});
  dead_ = true;
  for (const auto& link : links_) link->Sever();
}

void Gateway::Pause(Duration duration) {
  world_.Note({What::kPauses, place(), {}, {}, Micros(duration)});
  time_.PauseUntil(world_.loop.now() + duration);
}

}  // namespace meshnet::sim
