#include "gateway/gateway.h"

#include <algorithm>
#include <cctype>

#include "gateway/admission.h"
#include "gateway/api_keys_file.h"
#include "gateway/cluster_http.h"
#include "gateway/completions_http.h"
#include "gateway/gateway_server.h"
#include "gateway/http_connection.h"
#include "gateway/models_http.h"
#include "gateway/request_log.h"
#include "gateway/router.h"

namespace meshnet {
namespace gateway {
namespace {

constexpr Duration kStatusLimit = std::chrono::milliseconds(800);  // of a worker's answer in /cluster/v1/status
constexpr Duration kStopLimit = std::chrono::seconds(2);           // for workers to let go of sessions
constexpr size_t kAnswerThreadsMax = 2048;                         // each choice that runs or waits has one
constexpr size_t kSessionsMax = 256;                               // no route has more

std::vector<Token> CanaryPrompt(const TextModel& text) {
  std::vector<Token> prompt;
  if (text.has_tokenizer()) prompt = text.TokenizeText("The capital of France is");
  if (prompt.size() > 8) prompt.resize(8);
  if (prompt.empty()) prompt = {0};
  return prompt;
}

// Some clients give a character set here, which is harmless.
bool IsCompressed(const HttpRequest& head) {
  std::string coding = head.Header("Content-Encoding");
  for (char& c : coding) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return !coding.empty() && coding != "identity" && coding != "utf-8";
}

class GatewayServer final : public Gateway {
 public:
  GatewayServer(GatewayOptions options, GatewayLimits limits, ApiKeys keys, Route& route, const TextModel& text,
                std::vector<ShardLink*> worker_links, const Clock& clock)
      : options_(std::move(options)), limits_(std::move(limits)), keys_(std::move(keys)), route_(route), clock_(clock),
        admission_(limits_.requests_max), answer_threads_(kAnswerThreadsMax),
        pool_(route, clock, PoolOptions(), [this](size_t stage, double seconds) { metrics_.ObserveHop(stage, seconds); }),
        monitor_(route, std::move(worker_links), pool_, metrics_, clock, limits_.monitor),
        models_(route, text, options_.model_id),
        completions_({&route, &text, options_.model_id, {&pool_, &answer_threads_, &metrics_, &clock, limits_.answer}}) {
    AddEndpoints();
  }
  ~GatewayServer() override {
    Stop();
    monitor_.Stop();
    answer_threads_.Stop();
  }

  Status Open(BoundSocket bound) {
    address_ = bound.address;
    HttpServerOptions http = limits_.http;
    http.idle_read_limit = options_.idle_read_limit;
    http.threads_max = limits_.requests_max + limits_.reserved_threads;
    http.tls_certificate_path = options_.tls_certificate_path;
    http.tls_key_path = options_.tls_key_path;
    HttpHandlers handlers;
    handlers.gate = [this](const HttpRequest& head) { return Gate(head); };
    handlers.handle = [this](const HttpRequest& request, const Peer& peer) { return Handle(request, peer); };
    handlers.describe_error = ServerErrorBody;
    handlers.finish = [this](const HttpRequest& head, int, HttpHeaders* headers) {
      headers->emplace_back("x-request-id", head.id);
      AddCorsHeaders(head, keys_.required(), headers);
    };
    auto server = HttpServer::Start(bound, std::move(http), std::move(handlers));
    if (!server.ok()) return server.status();
    server_ = std::move(server).value();
    return OkStatus();
  }

  std::string address() const override { return address_; }
  void BeginDrain() override {
    if (!admission_.draining()) LogNotice("draining: running answers go on, new ones are refused");
    admission_.BeginDrain();
  }
  bool WaitDrained(Duration limit) override { return admission_.WaitEmpty(limit); }

  void Stop() override {
    std::lock_guard lock(stop_mutex_);
    if (stopped_) return;
    stopped_ = true;
    admission_.BeginDrain();
    if (server_) server_->Stop();  // every peer is gone now, so every answer is abandoned
    monitor_.BeginStop();
    pool_.Stop(kStopLimit);
    // The threads end as soon as their workers have let go of the last steps; the destructor waits for that, Stop does not.
  }

 private:
  SessionPoolOptions PoolOptions() const {
    SessionPoolOptions pool;
    pool.waiting_max = options_.queue_max;
    pool.driver.recovery_limit = options_.answer_wait;
    return pool;
  }

  void AddEndpoints();
  void AddProbes();
  std::optional<HttpReply> Gate(const HttpRequest& head);
  HttpReply Handle(const HttpRequest& request, const Peer& peer);
  std::optional<Caller> CallerOf(const HttpRequest& request) const;
  HttpReply Ready() const;
  HttpReply Refuse(const char* reason, const ApiError& error) {
    metrics_.CountRefusal(reason);
    return ErrorReply(error);
  }

  const GatewayOptions options_;
  const GatewayLimits limits_;
  const ApiKeys keys_;
  Route& route_;
  const Clock& clock_;
  Metrics metrics_;
  Admission admission_;
  GrowingThreads answer_threads_;
  SessionPool pool_;
  RouteMonitor monitor_;
  Models models_;
  Completions completions_;
  Router router_;
  std::string address_;
  std::unique_ptr<HttpServer> server_;
  std::mutex stop_mutex_;
  bool stopped_ = false;
};

void GatewayServer::AddProbes() {
  auto probe = [this](const char* path, std::function<HttpReply()> reply) {
    router_.Add({"GET", path, Endpoint::Access::kOpen, false, [reply](const HttpRequest&, const Peer&, const Caller&) { return reply(); }});
  };
  const std::function<HttpReply()> ready = [this] { return Ready(); };
  for (const char* path : {"/health", "/v1/health", "/readyz"}) probe(path, ready);
  probe("/livez", [] { return JsonReply(200, {{"status", "ok"}}); });
  router_.Add({"GET", "/metrics", Endpoint::Access::kKey, false, [this](const HttpRequest&, const Peer&, const Caller&) {
    const SessionPool::Counts counts = pool_.counts();
    metrics_.SetLoad(counts.answering, counts.waiting);
    HttpReply reply;
    reply.content_type = "text/plain; version=0.0.4; charset=utf-8";
    reply.body = metrics_.Text();
    return reply;
  }});
}

void GatewayServer::AddEndpoints() {
  AddProbes();
  auto get = [this](const char* path, std::function<HttpReply(const HttpRequest&)> reply) {
    router_.Add({"GET", path, Endpoint::Access::kKey, false, [reply](const HttpRequest& r, const Peer&, const Caller&) { return reply(r); }});
  };
  auto post = [this](const char* path, std::function<HttpReply(const HttpRequest&)> reply) {
    router_.Add({"POST", path, Endpoint::Access::kKey, true, [reply](const HttpRequest& r, const Peer&, const Caller&) { return reply(r); }});
  };
  auto completions = [this](const char* path, ApiKind kind) {
    router_.Add({"POST", path, Endpoint::Access::kKey, true, [this, kind](const HttpRequest& request, const Peer& peer, const Caller& caller) {
      if (!admission_.draining()) return completions_.Handle(kind, request, peer, caller.owner);
      metrics_.CountRefusal("gateway-draining");
      return ErrorReply(MakeError(503, "The gateway is draining and takes no new requests.", "gateway_draining"), std::chrono::seconds(5));
    }});
  };
  completions("/v1/chat/completions", ApiKind::kChat);
  completions("/chat/completions", ApiKind::kChat);
  completions("/v1/completions", ApiKind::kCompletion);
  completions("/completions", ApiKind::kCompletion);
  for (const char* path : {"/v1/models", "/models"}) get(path, [this](const HttpRequest&) { return models_.List(); });
  get("/v1/models/", [this](const HttpRequest& request) { return models_.One(request.path.substr(std::string("/v1/models/").size())); });
  get("/props", [this](const HttpRequest&) { return models_.Props(pool_.counts().answers_max); });
  get("/cluster/v1/status", [this](const HttpRequest&) {
    return ClusterStatus(route_, options_.model_id, monitor_.AskWorkers(kStatusLimit), pool_.Sessions(), metrics_);
  });
  post("/tokenize", [this](const HttpRequest& request) { return models_.Tokenize(request); });
  post("/detokenize", [this](const HttpRequest& request) { return models_.Detokenize(request); });
  post("/apply-template", [this](const HttpRequest& request) { return models_.ApplyTemplate(request); });
}

HttpReply GatewayServer::Ready() const {
  const std::string why = admission_.draining() ? "the gateway is draining" : monitor_.not_ready();
  if (why.empty()) return JsonReply(200, {{"status", "ok"}});
  return ErrorReply(MakeError(503, "Not ready: " + why, "not_ready"), std::chrono::seconds(1));
}

std::optional<Caller> GatewayServer::CallerOf(const HttpRequest& request) const {
  if (!keys_.required()) return Caller{request.client_address};
  const std::optional<std::string> name = keys_.NameOf(KeyOf(request));
  if (!name) return std::nullopt;
  return Caller{*name};
}

std::optional<HttpReply> GatewayServer::Gate(const HttpRequest& head) {
  if (head.method == "OPTIONS") return PreflightReply(head);
  const Router::Found found = router_.Find(head.method, head.path);
  const bool open = found.endpoint != nullptr && found.endpoint->access == Endpoint::Access::kOpen;
  if (!open && !CallerOf(head)) {
    LogFolded("a request without a valid API key was refused", clock_.Now());
    HttpReply reply = Refuse("invalid-key", MakeError(401, KeyOf(head).empty() ? "An API key is needed." : "The API key is not valid.", "invalid_api_key"));
    reply.headers.emplace_back("WWW-Authenticate", "Bearer");
    return reply;
  }
  if (found.endpoint == nullptr) {
    if (!found.allowed.empty()) {
      HttpReply reply = Refuse("not-found", MakeError(405, "This path does not take " + head.method + "."));
      reply.headers.emplace_back("Allow", found.allowed);
      return reply;
    }
    const std::string surface = UnsupportedSurface(head.path);
    if (surface.empty()) return Refuse("not-found", MakeError(404, "There is nothing at this path."));
    HttpReply reply = Refuse("not-supported", MakeError(501, "\"" + surface + "\" is not supported by meshnet."));
    reply.headers.emplace_back("x-should-retry", "false");
    return reply;
  }
  const std::string content_type = head.Header("Content-Type");
  if (head.method == "POST" && content_type.rfind("multipart/", 0) == 0) {
    return Refuse("invalid-request", MakeError(415, "The body must be JSON, not a multipart form."));
  }
  if (head.method == "POST" && IsCompressed(head)) {
    return Refuse("invalid-request", MakeError(415, "The body must not be compressed: send it without Content-Encoding."));
  }
  return std::nullopt;
}

HttpReply GatewayServer::Handle(const HttpRequest& request, const Peer& peer) {
  const Router::Found found = router_.Find(request.method, request.path);
  const std::optional<Caller> caller = CallerOf(request);
  if (found.endpoint == nullptr) return Refuse("not-found", MakeError(404, "There is nothing at this path."));  // the gate saw to it
  if (!found.endpoint->is_work) return found.endpoint->handle(request, peer, caller.value_or(Caller{}));
  std::shared_ptr<Admission::Pass> pass = admission_.Enter();
  if (!pass) {
    metrics_.CountRefusal("queue-full");
    return ErrorReply(MakeError(429, "Too many requests are being worked on.", "rate_limit_exceeded"), std::chrono::seconds(1));
  }
  HttpReply reply = found.endpoint->handle(request, peer, caller.value_or(Caller{}));
  // A streamed answer is inside until its last byte.
  if (reply.stream) reply.stream = [pass, stream = std::move(reply.stream)](BodyWriter& writer) { return stream(writer); };
  return reply;
}

}  // namespace

namespace {

// Everything that the options alone decide.
struct Door {
  BoundSocket bound;
  ApiKeys keys;
};

Result<Door> OpenDoor(const GatewayOptions& options) {
  auto address = ParseListenAddress(options.listen);
  if (!address.ok()) return address.status();
  if (options.tls_certificate_path.empty() != options.tls_key_path.empty()) {
    return BadConfiguration("HTTPS needs both a certificate and a key; only one was given");
  }
  Door door;
  if (!options.api_key_file.empty()) {
    auto loaded = ApiKeys::Load(options.api_key_file);
    if (!loaded.ok()) return loaded.status();
    door.keys = std::move(loaded).value();
  }
  auto bound = BindAndListen(*address);
  if (!bound.ok()) return bound.status();
  door.bound = *bound;
  if (!bound->loopback && !door.keys.required() && !options.insecure) {
    CloseSocket(bound->socket);
    return Refused("refusing to listen on " + bound->address + ": other machines could use the model without a key. Give an API key file "
                   "(--api-key-file), listen on 127.0.0.1, or say --insecure");
  }
  return door;
}

}  // namespace

Result<std::unique_ptr<Gateway>> StartGateway(GatewayOptions options, GatewayLimits limits, Route& route, const TextModel& text,
                                              std::vector<ShardLink*> worker_links, const Clock& clock) {
  auto door = OpenDoor(options);
  if (!door.ok()) return door.status();
  if (options.model_id.empty()) options.model_id = text.model_name();
  limits.monitor.canary_prompt = CanaryPrompt(text);
  // The line must be what is full first: it knows how many wait and says so.
  limits.requests_max = std::max<size_t>(limits.requests_max, kSessionsMax + std::min<size_t>(options.queue_max, kAnswerThreadsMax));
  auto server = std::make_unique<GatewayServer>(std::move(options), std::move(limits), std::move(door->keys), route, text,
                                                std::move(worker_links), clock);
  const Status status = server->Open(door->bound);
  if (!status.ok()) return status;
  return std::unique_ptr<Gateway>(std::move(server));
}

}  // namespace gateway

Result<std::unique_ptr<Gateway>> Gateway::Start(GatewayOptions options, Route& route, const TextModel& text,
                                                std::vector<ShardLink*> worker_links, const Clock& clock) {
  return gateway::StartGateway(std::move(options), gateway::GatewayLimits{}, route, text, std::move(worker_links), clock);
}

Status Gateway::CheckOptions(const GatewayOptions& options) {
  auto door = gateway::OpenDoor(options);
  if (!door.ok()) return door.status();
  gateway::CloseSocket(door->bound.socket);
  if (options.tls_certificate_path.empty()) return OkStatus();
  return gateway::TlsContext::Create(options.tls_certificate_path, options.tls_key_path).status();
}

}  // namespace meshnet
