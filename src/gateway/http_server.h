// An HTTP/1.1 server on a bound socket. httplib parses requests and writes replies; connections are ours: idle ones cost no thread, each
// request being answered has one, and when all threads are taken the slowest sender of a request is cut, so that a new request always gets in.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/status.h"
#include "gateway/http_types.h"
#include "gateway/listen_address_http.h"

namespace meshnet::gateway {

struct HttpServerOptions {
  Duration idle_read_limit = std::chrono::seconds(60);
  Duration idle_write_limit = std::chrono::seconds(60);
  Duration keep_alive = std::chrono::seconds(75);  // an idle connection stays open this long
  Duration slow_read = std::chrono::seconds(2);     // when all threads are taken, a request that takes longer to arrive is cut
  size_t threads_max = 256;        // requests being read or answered at once
  size_t connections_max = 4096;   // beyond it the longest idle one is closed, or the new one
  size_t body_bytes_max = 32u << 20;
  std::string tls_certificate_path = {};  // HTTPS; both or neither
  std::string tls_key_path = {};
};

// Called on many threads at once. What they throw becomes a 500.
struct HttpHandlers {
  // Sees each request's head before its body is read; a reply ends the request there.
  std::function<std::optional<HttpReply>(const HttpRequest& head)> gate;
  std::function<HttpReply(const HttpRequest& request, const Peer& peer)> handle;
  // The body of an error that the server found itself: a malformed request, a body that is too large.
  std::function<std::string(int status)> describe_error;
  // Adds headers to each reply, whoever made it.
  std::function<void(const HttpRequest& head, int status, HttpHeaders* headers)> finish;
};

class HttpServer {
 public:
  // Takes over the socket, also when it fails.
  static Result<std::unique_ptr<HttpServer>> Start(BoundSocket bound, HttpServerOptions options, HttpHandlers handlers);
  virtual ~HttpServer() = default;

  // Closes the door and every connection, and waits for the handlers to come back: their peers are gone.
  virtual void Stop() = 0;
  // Open connections, idle ones included.
  virtual size_t connections() const = 0;
};

}  // namespace meshnet::gateway
