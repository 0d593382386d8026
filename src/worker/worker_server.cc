#include "worker/worker_server.h"

#include <grpcpp/health_check_service_interface.h>

#include <algorithm>
#include <future>
#include <utility>

#include "engine/engine_options.h"
#include "wire/grpc_transport.h"
#include "wire/tls_credentials_file.h"
#include "wire/validate.h"
#include "wire/wire_limits.h"

namespace meshnet {
namespace {

constexpr uint64_t kFrameBytesFloor = 8u << 20;
// A step that is somewhat too large is refused with a reason; only beyond this does gRPC end the stream.
constexpr uint64_t kOversizeSlack = 16u << 20;

class Health {
 public:
  explicit Health(grpc::Server& server) : service_(*server.GetHealthCheckService()) { Set(ShardState::kStarting); }
  void Set(ShardState state) {
    const bool serving = state == ShardState::kServing;
    service_.SetServingStatus("", serving);
    service_.SetServingStatus(shard::v1::Shard::service_full_name(), serving);
  }

 private:
  grpc::HealthCheckServiceInterface& service_;
};

}  // namespace

Status CheckListenAddress(const std::string& listen, const TlsOptions& tls) {
  if (Status status = CheckTlsFiles(tls); !status.ok()) return status;
  return ListenSocket::Bind(listen, tls).status();
}

Status WorkerServer::BuildServer(const ShardWorkerOptions& options, uint64_t frame_bytes_cap) {
  const bool local_socket = socket_->address().kind == Address::Kind::kUnix;
  Result<std::shared_ptr<grpc::ServerCredentials>> credentials = ServerCredentialsOf(local_socket ? TlsOptions() : options.tls);
  if (!credentials.ok()) return credentials.status();
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  for (const auto& [name, value] : SharedTransportArguments()) builder.AddChannelArgument(name, value);
  for (const auto& [name, value] : ServerTransportArguments()) builder.AddChannelArgument(name, value);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                             static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(options.handshake_limit).count()));
  builder.SetMaxReceiveMessageSize(static_cast<int>(frame_bytes_cap + kOversizeSlack));
  builder.RegisterService(service_.get());
  using Acceptor = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
  acceptor_ = builder.experimental().AddExternalConnectionAcceptor(Acceptor::FROM_FD, *credentials);
  server_ = builder.BuildAndStart();
  return server_ ? OkStatus() : Failure("gRPC did not start on " + address());
}

Result<std::unique_ptr<WorkerServer>> WorkerServer::Start(const ShardWorkerOptions& options, ShardDescription description,
                                                          ShardHost::MakeEngine make_engine, const Clock& clock,
                                                          std::function<void(ShardState)> on_state) {
  QuietGrpcLog();
  RaiseDescriptorLimit();
  if (Status status = CheckTlsFiles(options.tls); !status.ok()) return status;
  std::unique_ptr<WorkerServer> worker(new WorkerServer());
  Result<std::unique_ptr<ListenSocket>> socket = ListenSocket::Bind(options.listen, options.tls);
  if (!socket.ok()) return socket.status();
  worker->socket_ = std::move(socket).value();

  ShardHostOptions host_options;
  host_options.hot_kv = options.hot_kv;
  host_options.turn_path = options.turn_path;
  host_options.drain_quiet = options.drain_quiet;
  host_options.frame_bytes_cap = std::max(kFrameBytesFloor, FrameBytesMax(kChunkRowsMax, description.boundary_width));
  const uint64_t frame_bytes_cap = host_options.frame_bytes_cap;
  // The engine waits for the server, so that no state is missed by its health service.
  auto server_is_there = std::make_shared<std::promise<Status>>();
  worker->set_health_ = std::make_shared<std::function<void(ShardState)>>();
  host_options.on_state = [set_health = worker->set_health_, on_state = std::move(on_state)](ShardState state) {
    if (*set_health) (*set_health)(state);
    if (on_state) on_state(state);
  };
  worker->host_ = std::make_unique<ShardHost>(
      std::move(host_options), std::move(description),
      [ready = server_is_there->get_future().share(), make_engine = std::move(make_engine)] {
        if (Status server = ready.get(); !server.ok()) return Result<std::unique_ptr<Engine>>(server);
        return make_engine();
      },
      clock);
  worker->service_ = std::make_unique<ShardService>(*worker->host_, clock);
  Status built = worker->BuildServer(options, frame_bytes_cap);
  if (built.ok()) {
    auto health = std::make_shared<Health>(*worker->server_);
    *worker->set_health_ = [health](ShardState state) { health->Set(state); };
    worker->socket_->Accept([acceptor = worker->acceptor_.get()](int listen_fd, int fd) {
      grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
      connection.listener_fd = listen_fd;
      connection.fd = fd;
      acceptor->HandleNewConnection(&connection);
    });
  }
  server_is_there->set_value(built);
  if (!built.ok()) return built;
  return worker;
}

WorkerServer::~WorkerServer() {
  // First nobody new, then an answer for everybody who waits, then the end of all streams.
  if (socket_) socket_->StopAccepting();
  if (host_) host_->Stop();
  if (server_) server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(50));
}

}  // namespace meshnet
