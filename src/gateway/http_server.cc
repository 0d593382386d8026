#include "gateway/http_server.h"

#include <cpp-httplib/httplib.h>

#include <algorithm>

#include "base/system_clock.h"
#include "gateway/connection_loop_http.h"
#include "gateway/http_connection.h"

namespace meshnet::gateway {
namespace {

// What one request carries through httplib's callbacks, which are told nothing of ours. One request at a time on each thread.
struct Serving {
  HttpConnection* connection = nullptr;
  HttpRequest request;
  bool close = false;      // the reply said so
  bool body_read = false;  // nothing of the request is left in the socket
};
thread_local Serving* serving = nullptr;

// It goes into a header and the log, so a client's own is taken only when it is harmless there.
std::string RequestId(const std::string& asked) {
  const bool harmless = !asked.empty() && asked.size() <= 128 && std::all_of(asked.begin(), asked.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.' || c == ':';
  });
  return harmless ? asked : "req-" + RandomId<SessionId>().Hex();
}

HttpRequest HeadOf(const httplib::Request& from, const std::string& client_address) {
  HttpRequest head;
  head.method = from.method;
  head.path = from.path;
  head.client_address = client_address;
  for (const auto& [key, value] : from.headers) head.headers.emplace_back(key, value);
  head.id = RequestId(head.Header("x-request-id"));
  return head;
}

class SinkWriter : public BodyWriter {
 public:
  explicit SinkWriter(httplib::DataSink& sink) : sink_(sink) {}
  bool Write(std::string_view bytes) override { return sink_.write(bytes.data(), bytes.size()); }

 private:
  httplib::DataSink& sink_;
};

void Apply(HttpReply reply, const std::string& http_version, httplib::Response* to) {
  to->status = reply.status;
  for (auto& [key, value] : reply.headers) to->set_header(key, value);
  if (!reply.stream) {
    if (!reply.body.empty()) to->set_content(std::move(reply.body), reply.content_type);
    return;
  }
  auto provider = [stream = std::move(reply.stream)](size_t, httplib::DataSink& sink) {
    SinkWriter writer(sink);
    if (!stream(writer)) return false;
    sink.done();
    return true;
  };
  // HTTP/1.0 knows no chunks.
  if (reply.stream_end == HttpReply::StreamEnd::kChunked && http_version != "HTTP/1.0") {
    to->set_chunked_content_provider(reply.content_type, std::move(provider));
  } else {
    to->set_header("Connection", "close");
    to->set_content_provider(reply.content_type, std::move(provider));
  }
}

class HttplibServer final : public HttpServer, private httplib::Server, private ConnectionServer {
 public:
  HttplibServer(HttpServerOptions options, HttpHandlers handlers) : options_(std::move(options)), handlers_(std::move(handlers)) {
    set_payload_max_length(options_.body_bytes_max);
    set_keep_alive_timeout(std::chrono::duration_cast<std::chrono::seconds>(options_.keep_alive).count());
    set_pre_routing_handler([this](const auto& request, auto& response) { return Gate(request, response); });
    Get(".*", [this](const httplib::Request& request, httplib::Response& response) { Handle(request, response); });
    Post(".*", [this](const httplib::Request& request, httplib::Response& response, const httplib::ContentReader& read) {
      HandleBody(request, response, read);
    });
    set_error_handler([this](const httplib::Request&, httplib::Response& response) {
      if (!response.body.empty() || response.content_provider_) return HandlerResponse::Unhandled;
      response.set_content(handlers_.describe_error(response.status), "application/json");
      return HandlerResponse::Handled;
    });
    set_exception_handler([this](const httplib::Request&, httplib::Response& response, std::exception_ptr) {
      response.status = 500;
      response.set_content(handlers_.describe_error(500), "application/json");
    });
    set_post_routing_handler([this](const httplib::Request& request, httplib::Response& response) { Finish(request, response); });
  }

  Status Open(BoundSocket bound, std::shared_ptr<TlsContext> tls) {
    svr_sock_ = bound.socket;  // httplib ends streamed bodies when it has no listening socket
    ConnectionLoopOptions loop;
    loop.keep_alive = options_.keep_alive;
    loop.limits = {options_.idle_read_limit, options_.idle_write_limit};
    loop.slow_read = options_.slow_read;
    loop.threads_max = options_.threads_max;
    loop.connections_max = options_.connections_max;
    auto started = ConnectionLoop::Start(bound.socket, loop, std::move(tls), *this);
    if (!started.ok()) return started.status();
    loop_ = std::move(started).value();
    return OkStatus();
  }

  ~HttplibServer() override { Stop(); }

  void Stop() override {
    if (loop_) loop_->Stop();
    svr_sock_ = INVALID_SOCKET;
  }
  size_t connections() const override { return loop_ ? loop_->connections() : 0; }

 private:
  // Serves what the connection has to say now. True: keep it for the next request.
  bool Serve(HttpConnection& connection) override {
    do {
      Serving now;
      now.connection = &connection;
      now.request.client_address = connection.client_address();
      serving = &now;
      connection.BeginRead();
      bool closed = false;
      const HttpConnection::Head head = connection.ReadHead();
      const bool ok = serve_guarded([&] {
        if (head != HttpConnection::Head::kReady) return RefuseHead(connection, head == HttpConnection::Head::kLineTooLong ? 414 : 431);
        return process_request(connection, connection.client_address(), 0, "", 0, false, closed, nullptr);
      });
      connection.EndOfRead();
      serving = nullptr;
      if (ok && !now.body_read) {
        connection.Linger();
        return false;
      }
      if (!ok || closed || now.close) return false;
    } while (connection.has_buffered());
    connection.Rest();
    return true;
  }

  // A head that httplib is not even shown.
  bool RefuseHead(HttpConnection& connection, int status) {
    HttpRequest head;
    head.id = RequestId("");
    head.client_address = connection.client_address();
    const std::string body = handlers_.describe_error(status);
    HttpHeaders headers = {{"Content-Type", "application/json"}, {"Content-Length", std::to_string(body.size())}, {"Connection", "close"}};
    handlers_.finish(head, status, &headers);
    std::string reply = "HTTP/1.1 " + std::to_string(status) + " " + httplib::status_message(status) + "\r\n";
    for (const auto& [key, value] : headers) reply.append(key).append(": ").append(value).append("\r\n");
    reply.append("\r\n").append(body);
    for (size_t sent = 0; sent < reply.size();) {
      const ssize_t count = connection.write(reply.data() + sent, reply.size() - sent);
      if (count < 0) return false;
      sent += static_cast<size_t>(count);
    }
    return true;
  }

  HandlerResponse Gate(const httplib::Request& request, httplib::Response& response) {
    serving->request = HeadOf(request, serving->connection->client_address());
    serving->connection->EndOfHead();
    serving->body_read = request.method == "GET" || request.method == "HEAD" || request.method == "OPTIONS";
    std::optional<HttpReply> reply = handlers_.gate(serving->request);
    if (!reply) {
      const size_t length = request.get_header_value_u64("Content-Length");
      if (length <= options_.body_bytes_max) return HandlerResponse::Unhandled;
      reply.emplace();
      reply->status = 413;
      reply->body = handlers_.describe_error(413);
    }
    Apply(std::move(*reply), request.version, &response);
    return HandlerResponse::Handled;
  }

  void HandleBody(const httplib::Request& request, httplib::Response& response, const httplib::ContentReader& read) {
    std::string& body = serving->request.body;
    body.reserve(std::min<size_t>(request.get_header_value_u64("Content-Length"), options_.body_bytes_max));
    const bool whole = read([&](const char* bytes, size_t count) {
      if (count > options_.body_bytes_max - body.size()) return false;
      body.append(bytes, count);
      return true;
    });
    if (!whole) {
      if (response.status < 400) response.status = 400;
      return;  // the error handler writes the body
    }
    serving->body_read = true;
    Handle(request, response);
  }

  void Handle(const httplib::Request& request, httplib::Response& response) {
    serving->connection->EndOfRead();
    Apply(handlers_.handle(serving->request, *serving->connection), request.version, &response);
  }

  void Finish(const httplib::Request& request, httplib::Response& response) {
    if (serving->request.method.empty()) serving->request = HeadOf(request, serving->connection->client_address());
    HttpHeaders headers;
    handlers_.finish(serving->request, response.status, &headers);
    for (auto& [key, value] : headers) response.set_header(key, value);
    response.headers.erase("Accept-Ranges");  // httplib says so to a HEAD, and it is not true here
    // One value each: httplib adds its own to those set before.
    if (response.get_header_value_count("Connection") > 1) {
      response.headers.erase("Connection");
      response.set_header("Connection", "close");
    }
    if (response.has_header("Connection")) response.headers.erase("Keep-Alive");
    serving->close = response.has_header("Connection");
  }

  const HttpServerOptions options_;
  const HttpHandlers handlers_;
  std::unique_ptr<ConnectionLoop> loop_;
};

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::Start(BoundSocket bound, HttpServerOptions options, HttpHandlers handlers) {
  std::shared_ptr<TlsContext> tls;
  if (!options.tls_certificate_path.empty()) {
    auto created = TlsContext::Create(options.tls_certificate_path, options.tls_key_path);
    if (!created.ok()) {
      CloseSocket(bound.socket);
      return created.status();
    }
    tls = std::move(created).value();
  }
  auto server = std::make_unique<HttplibServer>(std::move(options), std::move(handlers));
  const Status status = server->Open(bound, std::move(tls));
  if (!status.ok()) return status;
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace meshnet::gateway
