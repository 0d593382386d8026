#include "gateway/connection_loop_http.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace meshnet::gateway {
namespace {

constexpr int kAcceptsAtOnce = 64;
constexpr Duration kAcceptPause = std::chrono::milliseconds(50);
constexpr int kCrowdedTickMilliseconds = 100;  // between looks while requests wait for a thread

Time Now() { return std::chrono::steady_clock::now(); }

std::string AddressText(const sockaddr_storage& storage, socklen_t size) {
  char host[NI_MAXHOST] = "";
  getnameinfo(reinterpret_cast<const sockaddr*>(&storage), size, host, sizeof(host), nullptr, 0, NI_NUMERICHOST);
  // An IPv4 client of a dual-stack socket is the same client.
  return std::strncmp(host, "::ffff:", 7) == 0 ? host + 7 : host;
}

// What can be seen of a request without taking it: a first byte no request begins with (a TLS hello, a scan) needs no thread.
enum class FirstByte { kRequest, kNothing, kNonsense };
FirstByte PeekFirstByte(int socket) {
  char byte = 0;
  const ssize_t count = ::recv(socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) return FirstByte::kNothing;
  if (count < 0) return FirstByte::kRequest;
  const bool letter = (byte >= 'A' && byte <= 'Z') || (byte >= 'a' && byte <= 'z');
  return letter || byte == '\r' || byte == '\n' ? FirstByte::kRequest : FirstByte::kNonsense;
}

}  // namespace

Result<std::unique_ptr<ConnectionLoop>> ConnectionLoop::Start(int listening, ConnectionLoopOptions options, std::shared_ptr<TlsContext> tls,
                                                              ConnectionServer& server) {
  const int poller = epoll_create1(EPOLL_CLOEXEC);
  const int wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  epoll_event door{}, bell{};
  door.events = bell.events = EPOLLIN;
  door.data.fd = listening;
  bell.data.fd = wake;
  if (poller < 0 || wake < 0 || epoll_ctl(poller, EPOLL_CTL_ADD, listening, &door) != 0 || epoll_ctl(poller, EPOLL_CTL_ADD, wake, &bell) != 0) {
    const std::string why = std::strerror(errno);
    for (int fd : {listening, poller, wake}) {
      if (fd >= 0) ::close(fd);
    }
    return Failure("cannot wait for connections: " + why);
  }
  return std::unique_ptr<ConnectionLoop>(new ConnectionLoop(listening, poller, wake, options, std::move(tls), server));
}

ConnectionLoop::ConnectionLoop(int listening, int poller, int wake, ConnectionLoopOptions options, std::shared_ptr<TlsContext> tls,
                               ConnectionServer& server)
    : listening_(listening), poller_(poller), wake_(wake), options_(options), tls_(std::move(tls)), server_(server),
      threads_(options.threads_max), thread_([this] { Loop(); }) {}

ConnectionLoop::~ConnectionLoop() {
  Stop();
  for (int fd : {listening_, poller_, wake_}) ::close(fd);
}

void ConnectionLoop::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    for (HttpConnection* connection : active_) connection->Shut();
  }
  ::shutdown(listening_, SHUT_RDWR);
  Wake();
  if (thread_.joinable()) thread_.join();
  threads_.Stop();
  ParkedList parked;
  std::lock_guard lock(mutex_);
  by_socket_.clear();
  parked.swap(parked_);
}

size_t ConnectionLoop::connections() const {
  std::lock_guard lock(mutex_);
  return parked_.size() + active_.size();
}

void ConnectionLoop::Wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_, &one, sizeof(one));
}

void ConnectionLoop::Loop() {
  epoll_event events[256];
  for (;;) {
    const int count = epoll_wait(poller_, events, 256, SleepMilliseconds());
    {
      std::lock_guard lock(mutex_);
      if (stopping_) return;
    }
    bool door = false;
    for (int i = 0; i < count; ++i) {
      const int fd = events[i].data.fd;
      if (fd == listening_) {
        door = true;
      } else if (fd == wake_) {
        uint64_t rung;
        [[maybe_unused]] const ssize_t read = ::read(wake_, &rung, sizeof(rung));
      } else {
        bool fresh = false;
        std::shared_ptr<HttpConnection> connection = Unpark(fd, &fresh);
        if (!connection) continue;
        const FirstByte first = tls_ ? FirstByte::kRequest : PeekFirstByte(fd);
        if (first == FirstByte::kRequest) Dispatch(std::move(connection), fresh);
      }
    }
    if (door) Accept();
    Expire();
    CutSlowReaders();
  }
}

int ConnectionLoop::SleepMilliseconds() {
  if (threads_.waiting() > 0) return kCrowdedTickMilliseconds;
  std::lock_guard lock(mutex_);
  Time next = parked_.empty() ? Now() + std::chrono::seconds(60) : parked_.front().until;
  if (accept_again_ != Time{}) next = std::min(next, accept_again_);
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 60000));
}

void ConnectionLoop::Accept() {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    sockaddr_storage address{};
    socklen_t size = sizeof(address);
    const int fd = ::accept4(listening_, reinterpret_cast<sockaddr*>(&address), &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        // Without a free descriptor the waiting client would keep the poller awake: close the longest idle one, or look away for a moment.
        if (MakeRoom()) continue;
        std::lock_guard lock(mutex_);
        accept_again_ = Now() + kAcceptPause;
        epoll_ctl(poller_, EPOLL_CTL_DEL, listening_, nullptr);
      }
      return;
    }
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));  // a client whose machine is gone is noticed in the end
    auto connection = std::make_shared<HttpConnection>(fd, AddressText(address, size), options_.limits, tls_.get());
    bool full;
    {
      std::lock_guard lock(mutex_);
      full = parked_.size() + active_.size() >= options_.connections_max;
    }
    if (full && !MakeRoom()) continue;
    Park(std::move(connection), /*fresh=*/true);
  }
}

bool ConnectionLoop::MakeRoom() {
  std::shared_ptr<HttpConnection> oldest;
  std::lock_guard lock(mutex_);
  if (parked_.empty()) return false;
  oldest = std::move(parked_.front().connection);
  by_socket_.erase(oldest->socket());
  parked_.pop_front();
  return true;
}

void ConnectionLoop::Park(std::shared_ptr<HttpConnection> connection, bool fresh) {
  std::lock_guard lock(mutex_);
  if (stopping_) return;
  const int fd = connection->socket();
  const bool first = parked_.empty();
  parked_.push_back({std::move(connection), Now() + options_.keep_alive, fresh});
  by_socket_[fd] = std::prev(parked_.end());
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP | EPOLLONESHOT;
  event.data.fd = fd;
  if (epoll_ctl(poller_, EPOLL_CTL_ADD, fd, &event) != 0) {
    by_socket_.erase(fd);
    parked_.pop_back();
    return;
  }
  if (first) Wake();  // it may sleep longer than this one's time
}

std::shared_ptr<HttpConnection> ConnectionLoop::Unpark(int socket, bool* fresh) {
  std::lock_guard lock(mutex_);
  const auto found = by_socket_.find(socket);
  if (found == by_socket_.end()) return nullptr;
  epoll_ctl(poller_, EPOLL_CTL_DEL, socket, nullptr);
  std::shared_ptr<HttpConnection> connection = std::move(found->second->connection);
  *fresh = found->second->fresh;
  parked_.erase(found->second);
  by_socket_.erase(found);
  return connection;
}

void ConnectionLoop::Dispatch(std::shared_ptr<HttpConnection> connection, bool fresh) {
  HttpConnection* const raw = connection.get();
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return;
    active_.push_back(raw);
  }
  const auto submitted = threads_.Submit([this, fresh, connection = std::move(connection)]() mutable { ServeOn(std::move(connection), fresh); });
  if (submitted == GrowingThreads::Submitted::kStopped) {
    std::lock_guard lock(mutex_);
    active_.remove(raw);
  }
}

void ConnectionLoop::ServeOn(std::shared_ptr<HttpConnection> connection, bool fresh) {
  const bool keep = (!fresh || connection->Handshake()) && server_.Serve(*connection);
  {
    std::lock_guard lock(mutex_);
    active_.remove(connection.get());
  }
  if (keep) Park(std::move(connection), /*fresh=*/false);
}

void ConnectionLoop::CutSlowReaders() {
  size_t wanted = threads_.waiting();
  if (wanted == 0) return;
  std::lock_guard lock(mutex_);
  for (HttpConnection* connection : active_) {
    if (wanted == 0) return;
    if (connection->reading_for() < options_.slow_read) continue;
    connection->Shut();
    --wanted;
  }
}

void ConnectionLoop::Expire() {
  ParkedList due;  // closed after the lock is gone
  std::lock_guard lock(mutex_);
  const Time now = Now();
  while (!parked_.empty() && parked_.front().until <= now) {
    by_socket_.erase(parked_.front().connection->socket());
    due.splice(due.end(), parked_, parked_.begin());
  }
  if (accept_again_ != Time{} && accept_again_ <= now) {
    accept_again_ = Time{};
    epoll_event door{};
    door.events = EPOLLIN;
    door.data.fd = listening_;
    epoll_ctl(poller_, EPOLL_CTL_ADD, listening_, &door);
  }
}

}  // namespace meshnet::gateway
