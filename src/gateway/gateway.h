// The HTTP gateway over a route: OpenAI's API, probes, metrics, status. Everything it needs is handed in; it owns only its threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "session/route.h"
#include "text/text_model.h"

namespace meshnet {

struct GatewayOptions {
  std::string listen = "127.0.0.1:8080";  // "host:port", "[::1]:port"; port 0: any
  std::string api_key_file;               // one key a line, `name:key` or a key alone; empty: no keys
  bool insecure = false;                  // off loopback without keys is refused unless this says so
  std::string model_id;                   // id in /v1/models; empty: from the text model
  uint32_t queue_max = 64;                // requests waiting for a session, beyond it 429
  Duration answer_wait = std::chrono::seconds(60);    // how long an answer in flight waits for its route
  Duration idle_read_limit = std::chrono::seconds(60);
  std::string tls_certificate_path;       // HTTPS; both or neither
  std::string tls_key_path;
};

// A running gateway. Start binds first and refuses a taken or bad address (kBadConfiguration, naming it), or one off loopback without keys
// (kRefused).
class Gateway {
 public:
  // The same refusals without serving, for before a model is read: binds and lets go.
  static Status CheckOptions(const GatewayOptions& options);
  // `route`, `text`, `clock` outlive the gateway. `worker_links` are the route's links, for Stats.
  static Result<std::unique_ptr<Gateway>> Start(GatewayOptions options, Route& route, const TextModel& text,
                                                std::vector<ShardLink*> worker_links, const Clock& clock);
  virtual ~Gateway() = default;

  // "127.0.0.1:8080" with the real port.
  virtual std::string address() const = 0;
  // Stops accepting (/readyz 503); running answers go on.
  virtual void BeginDrain() = 0;
  // Blocks until no answer runs or `limit` is over; true when none ran.
  virtual bool WaitDrained(Duration limit) = 0;
  // Closes the door and ends all answers at once. It and the destructor wait a few seconds at most for a worker that does not answer.
  virtual void Stop() = 0;
};

}  // namespace meshnet
