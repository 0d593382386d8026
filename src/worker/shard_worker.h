// One shard worker: hot KV + engine on one thread, served over gRPC until a signal or its lifeline ends it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "engine/engine.h"
#include "protocol/describe.h"
#include "wire/tls_options.h"
#include "worker/hot_kv_settings.h"

namespace meshnet {

struct ShardWorkerOptions {
  std::string listen = "127.0.0.1:7070";  // port 0: any; "unix:/path"
  TlsOptions tls;
  HotKvSettings hot_kv;
  std::string turn_path;       // file whose lock is the host's one engine turn; empty: no turns
  int lifeline_fd = -1;        // its end of file ends the worker: the parent is gone
  int ready_fd = -1;           // gets one line with the address once serving, then is closed
  Duration drain_limit = std::chrono::seconds(30);
  Duration drain_quiet = std::chrono::seconds(5);      // a drain is over when no session had a step for so long
  Duration handshake_limit = std::chrono::seconds(10); // a connection that does not speak gRPC by then is closed
};

// A port that can be bound is bound before the model is read: call this first. kUsage quotes a bad address, kBadConfiguration names one that
// cannot be bound or a TLS file that is wrong, kRefused is plaintext off loopback.
Status CheckListenAddress(const std::string& listen, const TlsOptions& tls);

// `make_engine` runs on the engine thread, after the port is bound. `description` carries identity and prediction; limits, numerics and
// measured bytes are filled from the engine, the incarnation is drawn when it is zero. Blocks until SIGTERM/SIGINT drained it (Ok), the lifeline
// ended (Ok), or it failed. A second signal, and the end of the lifeline, end it at once; if an engine call does not let go, the process exits.
Status RunShardWorker(const ShardWorkerOptions& options, ShardDescription description,
                      const std::function<Result<std::unique_ptr<Engine>>()>& make_engine);

}  // namespace meshnet
