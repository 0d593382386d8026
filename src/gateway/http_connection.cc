#include "gateway/http_connection.h"

#include <openssl/err.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <string_view>

namespace meshnet::gateway {
namespace {

constexpr size_t kBufferBytes = 16384;
constexpr size_t kRequestLineMax = 32768;  // httplib's; a longer one makes it drop the connection without a word
constexpr size_t kHeadMax = 65536;
constexpr Duration kHandshakeLimit = std::chrono::seconds(20);
// A client that got its reply early may go on sending what nobody wants; beyond these it is cut.
constexpr Duration kLingerLimit = std::chrono::seconds(10);
constexpr Duration kLingerSilence = std::chrono::seconds(1);
constexpr size_t kLingerBytes = 128u << 20;

Time Now() { return std::chrono::steady_clock::now(); }

int PollMilliseconds(Duration duration) {
  const auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(duration).count();
  return static_cast<int>(std::clamp<int64_t>(milliseconds, 0, 3600 * 1000));
}

std::string OpenSslError() {
  char text[256] = "unknown error";
  const unsigned long code = ERR_get_error();
  if (code != 0) ERR_error_string_n(code, text, sizeof(text));
  ERR_clear_error();
  return text;
}

// What does not is refused by httplib at once, without waiting for the rest.
bool LooksLikeRequestLine(std::string_view line) { return line.ends_with(" HTTP/1.1") || line.ends_with(" HTTP/1.0"); }

// Under another name of that length nobody looks at it.
void HideRange(std::span<char> head) {
  constexpr std::string_view kName = "\r\nrange";
  auto equal = [](char a, char b) { return (a >= 'A' && a <= 'Z' ? static_cast<char>(a + 32) : a) == b; };
  for (auto at = head.begin();; ++at) {
    at = std::search(at, head.end(), kName.begin(), kName.end(), equal);
    if (at == head.end()) return;
    at[2] = 'x';
  }
}

PeerState StateOf(short revents) {
  if (revents & (POLLERR | POLLHUP | POLLNVAL)) return PeerState::kGone;
  return revents & POLLRDHUP ? PeerState::kHalfClosed : PeerState::kOpen;
}

}  // namespace

Result<std::shared_ptr<TlsContext>> TlsContext::Create(const std::string& certificate_path, const std::string& key_path) {
  SSL_CTX* raw = SSL_CTX_new(TLS_server_method());
  if (raw == nullptr) return Failure("cannot set up TLS: " + OpenSslError());
  std::shared_ptr<TlsContext> context(new TlsContext(raw));
  SSL_CTX_set_min_proto_version(raw, TLS1_2_VERSION);
  SSL_CTX_set_mode(raw, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
  if (SSL_CTX_use_certificate_chain_file(raw, certificate_path.c_str()) != 1) {
    return BadConfiguration("cannot use the certificate \"" + certificate_path + "\": " + OpenSslError());
  }
  if (SSL_CTX_use_PrivateKey_file(raw, key_path.c_str(), SSL_FILETYPE_PEM) != 1 || SSL_CTX_check_private_key(raw) != 1) {
    return BadConfiguration("cannot use the key \"" + key_path + "\" with that certificate: " + OpenSslError());
  }
  return context;
}

HttpConnection::HttpConnection(int socket, std::string client_address, ConnectionLimits limits, const TlsContext* tls)
    : socket_(socket), client_address_(std::move(client_address)), limits_(limits), ssl_(nullptr, &SSL_free) {
  if (tls == nullptr) return;
  ssl_.reset(SSL_new(tls->get()));
  if (ssl_) SSL_set_fd(ssl_.get(), socket_);
  if (!ssl_) Shut();
}

HttpConnection::~HttpConnection() {
  if (ssl_) SSL_shutdown(ssl_.get());
  ssl_.reset();
  ::close(socket_);
}

bool HttpConnection::Handshake() {
  if (!ssl_) return true;
  BeginRead();
  const Time deadline = Now() + kHandshakeLimit;
  for (;;) {
    ERR_clear_error();
    const int done = SSL_accept(ssl_.get());
    if (done == 1) return true;
    const int error = SSL_get_error(ssl_.get(), done);
    if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) break;
    if (!WaitSocket(error == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT, deadline)) break;
  }
  ERR_clear_error();
  SSL_set_quiet_shutdown(ssl_.get(), 1);
  return false;
}

void HttpConnection::BeginRead() {
  const Time now = Now();
  head_deadline_ = now + limits_.idle_read;
  reading_since_ = now.time_since_epoch().count();
}

HttpConnection::Head HttpConnection::ReadHead() {
  std::copy(buffer_.data() + begin_, buffer_.data() + end_, buffer_.data());
  end_ -= begin_;
  begin_ = 0;
  for (size_t searched = 0;;) {
    const std::string_view seen(buffer_.data(), end_);
    const size_t line_end = seen.substr(0, kRequestLineMax).find("\r\n");
    if (line_end != seen.npos) {
      if (!LooksLikeRequestLine(seen.substr(0, line_end))) return Head::kReady;
      const size_t head_end = seen.find("\r\n\r\n", std::max(line_end, searched));
      if (head_end != seen.npos) {
        HideRange(std::span(buffer_).first(head_end));
        return Head::kReady;
      }
      if (end_ >= kHeadMax) return Head::kTooLarge;
      searched = end_ - 2;  // at least "\r\n" was there; its second half may be the first of what is looked for
    } else if (end_ >= kRequestLineMax) {
      return Head::kLineTooLong;
    }
    if (end_ == buffer_.size()) buffer_.resize(std::clamp(2 * buffer_.size(), kBufferBytes, kHeadMax));
    if (!Fill()) return Head::kReady;
  }
}

void HttpConnection::Rest() {
  if (begin_ < end_) return;
  begin_ = end_ = 0;
  buffer_ = {};
}

Duration HttpConnection::reading_for() const {
  const int64_t since = reading_since_;
  return since == kNotReading ? Duration(0) : Now() - Time(Duration(since));
}

PeerState HttpConnection::state() const {
  pollfd entry{socket_, POLLRDHUP, 0};
  return ::poll(&entry, 1, 0) < 0 && errno != EINTR ? PeerState::kGone : StateOf(entry.revents);
}

PeerState HttpConnection::WaitFor(int wake_fd, PeerState known, Duration limit) const {
  // A half-closed socket stays "readable to the end" for ever, so only its break is waited for then; poll always reports that.
  pollfd entries[2] = {{socket_, static_cast<short>(known == PeerState::kOpen ? POLLRDHUP : 0), 0}, {wake_fd, POLLIN, 0}};
  if (::poll(entries, 2, PollMilliseconds(limit)) < 0) return errno == EINTR ? known : PeerState::kGone;
  const PeerState seen = StateOf(entries[0].revents);
  return seen == PeerState::kOpen ? known : seen;
}

void HttpConnection::Shut() const { ::shutdown(socket_, SHUT_RDWR); }

void HttpConnection::Linger() {
  if (!ssl_) ::shutdown(socket_, SHUT_WR);
  BeginRead();  // whoever sends on for long makes way for other clients as a slow sender does
  const Time deadline = Now() + kLingerLimit;
  char waste[16384];
  for (size_t wasted = 0;;) {
    short events = 0;
    const ssize_t count = TryRead(waste, sizeof(waste), &events);
    if (count > 0) wasted += static_cast<size_t>(count);
    if (count > 0 && wasted < kLingerBytes && Now() < deadline) continue;
    if (count >= 0 || events == 0) return;
    if (!WaitSocket(events, std::min(deadline, Now() + kLingerSilence))) return;
  }
}

bool HttpConnection::wait_readable() const { return has_buffered() || WaitSocket(POLLIN, std::min(head_deadline_, Now() + limits_.idle_read)); }

ssize_t HttpConnection::read(char* ptr, size_t size) {
  if (begin_ == end_) {
    if (buffer_.empty()) buffer_.resize(kBufferBytes);
    begin_ = end_ = 0;
    if (!Fill()) return error_ == httplib::Error::ConnectionClosed ? 0 : -1;
  }
  const size_t taken = std::min(size, end_ - begin_);
  std::memcpy(ptr, buffer_.data() + begin_, taken);
  begin_ += taken;
  return static_cast<ssize_t>(taken);
}

bool HttpConnection::Fill() {
  for (;;) {
    short events = 0;
    const ssize_t count = TryRead(buffer_.data() + end_, buffer_.size() - end_, &events);
    if (count > 0) {
      end_ += static_cast<size_t>(count);
      return true;
    }
    if (count < 0 && events != 0 && WaitSocket(events, std::min(head_deadline_, Now() + limits_.idle_read))) continue;
    if (count == 0) error_ = httplib::Error::ConnectionClosed;
    else error_ = events == 0 ? httplib::Error::Read : httplib::Error::Timeout;
    return false;
  }
}

ssize_t HttpConnection::write(const char* ptr, size_t size) {
  const Time deadline = Now() + limits_.idle_write;
  for (;;) {
    short events = 0;
    const ssize_t count = TryWrite(ptr, size, &events);
    if (count > 0 || size == 0) return count;
    if (events == 0 || !WaitSocket(events, deadline)) {
      error_ = httplib::Error::Write;
      return -1;
    }
  }
}

ssize_t HttpConnection::TryRead(char* ptr, size_t size, short* events) {
  if (ssl_) {
    ERR_clear_error();
    const int count = SSL_read(ssl_.get(), ptr, static_cast<int>(std::min<size_t>(size, 1 << 30)));
    if (count > 0) return count;
    const int error = SSL_get_error(ssl_.get(), count);
    if (error == SSL_ERROR_ZERO_RETURN) return 0;
    if (error == SSL_ERROR_WANT_READ) *events = POLLIN;
    if (error == SSL_ERROR_WANT_WRITE) *events = POLLOUT;
    if (*events == 0) SSL_set_quiet_shutdown(ssl_.get(), 1);
    return -1;
  }
  for (;;) {
    const ssize_t count = ::recv(socket_, ptr, size, 0);
    if (count >= 0) return count;
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) *events = POLLIN;
    return -1;
  }
}

ssize_t HttpConnection::TryWrite(const char* ptr, size_t size, short* events) {
  if (ssl_) {
    ERR_clear_error();
    const int count = SSL_write(ssl_.get(), ptr, static_cast<int>(std::min<size_t>(size, 1 << 30)));
    if (count > 0) return count;
    const int error = SSL_get_error(ssl_.get(), count);
    if (error == SSL_ERROR_WANT_READ) *events = POLLIN;
    if (error == SSL_ERROR_WANT_WRITE) *events = POLLOUT;
    if (*events == 0) SSL_set_quiet_shutdown(ssl_.get(), 1);
    return -1;
  }
  for (;;) {
    const ssize_t count = ::send(socket_, ptr, size, MSG_NOSIGNAL);
    if (count >= 0) return count;
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) *events = POLLOUT;
    return -1;
  }
}

bool HttpConnection::WaitSocket(short events, Time deadline) const {
  for (;;) {
    const Time now = Now();
    if (now >= deadline) return false;
    pollfd entry{socket_, events, 0};
    const int ready = ::poll(&entry, 1, PollMilliseconds(deadline - now));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

void HttpConnection::get_remote_ip_and_port(std::string& ip, int& port) const {
  ip = client_address_;
  port = 0;
}

void HttpConnection::get_local_ip_and_port(std::string& ip, int& port) const {
  ip.clear();
  port = 0;
}

const char* HttpConnection::buffered_data(size_t& size) const {
  size = end_ - begin_;
  return size > 0 ? buffer_.data() + begin_ : nullptr;
}

}  // namespace meshnet::gateway
