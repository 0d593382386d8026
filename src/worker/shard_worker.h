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
};

// A port that can be bound is bound before the model is read: call this first. kBadConfiguration names the address.
Status CheckListenAddress(const std::string& listen, const TlsOptions& tls);

// `make_engine` runs on the engine thread, after the port is bound. `description` carries identity and prediction; limits, numerics and
// measured bytes are filled from the engine. Blocks until SIGTERM/SIGINT drained it (Ok), the lifeline ended (Ok), or it failed.
Status RunShardWorker(const ShardWorkerOptions& options, ShardDescription description,
                      const std::function<Result<std::unique_ptr<Engine>>()>& make_engine);

}  // namespace meshnet
