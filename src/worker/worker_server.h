// A worker in one object: the socket, the gRPC server with its health service, and the shard behind it. RunShardWorker adds signals to it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include <grpcpp/grpcpp.h>

#include "base/clock.h"
#include "base/status.h"
#include "worker/listen_socket.h"
#include "worker/shard_host.h"
#include "worker/shard_service.h"
#include "worker/shard_worker.h"

namespace meshnet {

class WorkerServer {
 public:
  // Binds, serves at once (Describe says STARTING, health NOT_SERVING) and lets the engine thread make the engine. `on_state` as in ShardHost.
  // kUsage, kBadConfiguration, kRefused as ListenSocket::Bind, and for TLS files. `clock` outlives the server.
  static Result<std::unique_ptr<WorkerServer>> Start(const ShardWorkerOptions& options, ShardDescription description, ShardHost::MakeEngine make_engine,
                                                     const Clock& clock, std::function<void(ShardState)> on_state = {});
  // Answers what is unanswered, ends all streams.
  ~WorkerServer();
  WorkerServer(const WorkerServer&) = delete;
  WorkerServer& operator=(const WorkerServer&) = delete;

  // "127.0.0.1:7070", with the real port.
  std::string address() const { return socket_->address().Text(); }
  ShardHost& host() { return *host_; }

 private:
  WorkerServer() = default;
  Status BuildServer(const ShardWorkerOptions& options, uint64_t frame_bytes_cap);

  std::unique_ptr<ListenSocket> socket_;
  // Health follows the shard's state; set once the server is there.
  std::shared_ptr<std::function<void(ShardState)>> set_health_;
  std::unique_ptr<ShardHost> host_;
  std::unique_ptr<ShardService> service_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace meshnet
