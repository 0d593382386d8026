// One client connection, plain or TLS, as a stream that httplib can serve requests from. Reading and writing belong to one thread at a time;
// `state` and `Shut` may be called from any.
#pragma once

#include <cpp-httplib/httplib.h>
#include <openssl/ssl.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "gateway/http_types.h"

namespace meshnet::gateway {

// The server's certificate and key; shared by all its connections.
class TlsContext {
 public:
  // kBadConfiguration names the file that cannot be used.
  static Result<std::shared_ptr<TlsContext>> Create(const std::string& certificate_path, const std::string& key_path);
  SSL_CTX* get() const { return context_.get(); }

 private:
  explicit TlsContext(SSL_CTX* context) : context_(context, &SSL_CTX_free) {}
  std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context_;
};

struct ConnectionLimits {
  Duration idle_read = std::chrono::seconds(60);   // silence in the middle of a request; a head must also be whole by then
  Duration idle_write = std::chrono::seconds(60);  // a client that takes nothing
};

class HttpConnection final : public httplib::Stream, public Peer {
 public:
  // Takes over `socket`, which must be non-blocking. `tls` may be null.
  HttpConnection(int socket, std::string client_address, ConnectionLimits limits, const TlsContext* tls);
  ~HttpConnection() override;

  // Once, before the first read, when there is TLS. False: no handshake within the limit.
  bool Handshake();
  // A request is being read from here on, and its head must be whole within the read limit.
  void BeginRead();
  // Waits for the next request's head, so that what httplib would do to it can be decided before. kReady also when no whole head comes: httplib
  // knows what to say then. A Range header is made to mean nothing: nothing here is served in parts, and httplib would cut answers or refuse them.
  enum class Head { kReady, kLineTooLong, kTooLarge };
  Head ReadHead();
  void EndOfHead() { head_deadline_ = Time::max(); }
  void EndOfRead() { reading_since_ = kNotReading; }
  // How long the request that is being read has taken so far; nothing is lost but a slow client when it is cut then. Any thread.
  Duration reading_for() const;

  // Peer.
  PeerState state() const override;
  PeerState WaitFor(int wake_fd, PeerState known, Duration limit) const override;

  // Breaks the connection: blocked reads and writes end, `state` is kGone.
  void Shut() const;
  // After a reply to a request that was not read whole: lets the client finish sending and see the reply before the socket closes.
  void Linger();
  // No request for now: an idle connection keeps no memory for the next one.
  void Rest();
  const std::string& client_address() const { return client_address_; }
  bool has_buffered() const { return begin_ < end_ || (ssl_ && SSL_pending(ssl_.get()) > 0); }

  // httplib::Stream.
  bool is_readable() const override { return has_buffered(); }
  bool wait_readable() const override;
  // Never waits: `write` does. httplib asks this before each piece of a streamed body, which may have nothing to write yet.
  bool wait_writable() const override { return state() != PeerState::kGone; }
  // A client that only stopped sending still gets its answer.
  bool is_peer_alive() const override { return state() != PeerState::kGone; }
  ssize_t read(char* ptr, size_t size) override;
  ssize_t write(const char* ptr, size_t size) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  socket_t socket() const override { return socket_; }
  time_t duration() const override { return 0; }
  const char* buffered_data(size_t& size) const override;
  void consume_buffered(size_t size) override { begin_ += size; }

 private:
  // One attempt; > 0: bytes, 0: end of the stream, < 0 with `events`: wait for those, without: broken.
  ssize_t TryRead(char* ptr, size_t size, short* events);
  ssize_t TryWrite(const char* ptr, size_t size, short* events);
  bool WaitSocket(short events, Time deadline) const;
  // Waits for bytes behind end_, where there is room. False: there are none; error_ says why.
  bool Fill();

  const int socket_;
  const std::string client_address_;
  const ConnectionLimits limits_;
  std::unique_ptr<SSL, decltype(&SSL_free)> ssl_;
  std::vector<char> buffer_;
  size_t begin_ = 0, end_ = 0;  // unread part of buffer_
  Time head_deadline_ = Time::max();
  static constexpr int64_t kNotReading = -1;
  std::atomic<int64_t> reading_since_{kNotReading};  // nanoseconds of the steady clock
};

}  // namespace meshnet::gateway
