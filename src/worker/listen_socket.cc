#include "worker/listen_socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/loopback.h"

namespace meshnet {
namespace {

constexpr int kBacklog = 1024;
// The kernel gives the lowest free number, so a descriptor at this bound means that so many are open: the connection is closed at once.
constexpr int kDescriptorMax = 4096;
constexpr int kReserve = 64;  // descriptors left for files
constexpr int kPortTries = 8;

struct AddressList {
  addrinfo* first = nullptr;
  ~AddressList() {
    if (first) freeaddrinfo(first);
  }
};

std::string ErrorText(int error) { return std::strerror(error); }

void SetPort(sockaddr_storage& address, uint16_t port) {
  if (address.ss_family == AF_INET) {
    reinterpret_cast<sockaddr_in&>(address).sin_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in6&>(address).sin6_port = htons(port);
  }
}

uint16_t PortOf(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET ? reinterpret_cast<sockaddr_in&>(address).sin_port : reinterpret_cast<sockaddr_in6&>(address).sin6_port);
}

// A listening socket, or -1 with errno.
int BindOne(const addrinfo& info, uint16_t port) {
  int fd = socket(info.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  int on = 1, off = 0;
  // Only lets a restarted worker have its port back at once; two listeners on one port stay impossible.
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (info.ai_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  sockaddr_storage address{};
  std::memcpy(&address, info.ai_addr, info.ai_addrlen);
  SetPort(address, port);
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), info.ai_addrlen) == 0 && listen(fd, kBacklog) == 0) return fd;
  int error = errno;
  close(fd);
  errno = error;
  return -1;
}

// A family that this machine lacks is no reason to refuse a name that has another one.
bool IsAbsentFamily(int error) { return error == EADDRNOTAVAIL || error == EAFNOSUPPORT || error == EPROTONOSUPPORT; }

void CloseAll(std::vector<int>& fds) {
  for (int fd : fds) close(fd);
  fds.clear();
}

// Binds every address of the list on one port; 0 with `fds` filled, else errno.
int BindAll(const addrinfo* first, uint16_t port, std::vector<int>& fds) {
  int absent = 0;
  for (const addrinfo* info = first; info; info = info->ai_next) {
    if (info->ai_family != AF_INET && info->ai_family != AF_INET6) continue;
    int fd = BindOne(*info, port);
    if (fd < 0 && IsAbsentFamily(errno)) {
      absent = errno;
      continue;
    }
    if (fd < 0) {
      int error = errno;
      CloseAll(fds);
      return error;
    }
    fds.push_back(fd);
    if (port == 0) port = PortOf(fd);  // the others get the port that the first was given
  }
  if (fds.empty()) return absent ? absent : EADDRNOTAVAIL;
  return 0;
}

}  // namespace

void RaiseDescriptorLimit() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  rlim_t wanted = std::min<rlim_t>(limit.rlim_max, 2 * kDescriptorMax);
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = wanted;
  setrlimit(RLIMIT_NOFILE, &limit);
}

Result<std::unique_ptr<ListenSocket>> ListenSocket::Bind(const std::string& listen, const TlsOptions& tls) {
  Result<Address> address = ParseAddress(listen, kWorkerPort);
  if (!address.ok()) return address.status();
  std::unique_ptr<ListenSocket> socket(new ListenSocket());
  socket->address_ = *address;
  Status status = address->kind == Address::Kind::kUnix ? socket->BindUnix() : socket->BindTcp(tls);
  if (!status.ok()) return status;
  socket->wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (socket->wake_fd_ < 0) return Failure("eventfd: " + ErrorText(errno));
  return socket;
}

Status ListenSocket::BindTcp(const TlsOptions& tls) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  AddressList list;
  if (int error = getaddrinfo(address_.host.c_str(), nullptr, &hints, &list.first); error != 0) {
    return BadConfiguration("cannot listen on " + address_.Text() + ": " + gai_strerror(error));
  }
  for (const addrinfo* info = list.first; info; info = info->ai_next) {
    if (tls.enabled() || tls.insecure || IsLoopback(*info->ai_addr)) continue;
    return Refused("listening on " + address_.Text() + " without TLS is refused: anyone there could use this worker; give --tls-cert, --tls-key and "
                   "--tls-ca (meshnet certificates makes them), or --insecure on a network you trust");
  }
  int error = 0;
  // With any port allowed, one that is free for the first address may be taken for the second.
  for (int i = 0; i < kPortTries; ++i) {
    error = BindAll(list.first, address_.port, fds_);
    if (error != EADDRINUSE || address_.port != 0) break;
  }
  if (error == EADDRINUSE) return BadConfiguration("cannot listen on " + address_.Text() + ": another process listens there already");
  if (error == EACCES) return BadConfiguration("cannot listen on " + address_.Text() + ": this user may not use the port; take one from 1024 on");
  if (error != 0) return BadConfiguration("cannot listen on " + address_.Text() + ": " + ErrorText(error));
  address_.port = PortOf(fds_.front());
  return OkStatus();
}

Status ListenSocket::BindUnix() {
  auto bad = [this](const std::string& why) { return BadConfiguration("cannot listen on " + address_.Text() + ": " + why); };
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, address_.path.c_str(), address_.path.size() + 1);
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return bad(ErrorText(errno));
  fds_.push_back(fd);
  struct stat info;
  if (lstat(address_.path.c_str(), &info) == 0) {
    if (!S_ISSOCK(info.st_mode)) return bad("a file that is no socket stands there");
    // A socket that nobody listens on was left behind by a worker that was killed.
    int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool alive = connect(probe, generic, sizeof address) == 0;
    close(probe);
    if (alive) return bad("another process listens there already");
    unlink(address_.path.c_str());
  }
  if (bind(fd, generic, sizeof address) != 0) return bad(ErrorText(errno));
  bound_path_ = true;
  // Nobody can connect before listen, so nobody slips in before the permissions are set.
  if (chmod(address_.path.c_str(), 0600) != 0 || ::listen(fd, kBacklog) != 0) return bad(ErrorText(errno));
  return OkStatus();
}

ListenSocket::~ListenSocket() {
  StopAccepting();
  CloseAll(fds_);
  if (bound_path_) unlink(address_.path.c_str());
  if (wake_fd_ >= 0) close(wake_fd_);
}

void ListenSocket::Accept(std::function<void(int, int)> on_connection) {
  thread_ = std::thread([this, on_connection = std::move(on_connection)] { Loop(on_connection); });
}

void ListenSocket::StopAccepting() {
  if (!thread_.joinable()) return;
  uint64_t one = 1;
  while (write(wake_fd_, &one, sizeof one) < 0 && errno == EINTR) {
  }
  thread_.join();
}

void ListenSocket::Loop(const std::function<void(int, int)>& on_connection) {
  std::vector<pollfd> polled = {{wake_fd_, POLLIN, 0}};
  for (int fd : fds_) polled.push_back({fd, POLLIN, 0});
  bool has_room = true;
  while (true) {
    // Without room the listeners are left alone for a moment: their connections wait in the backlog.
    int ready = has_room ? poll(polled.data(), polled.size(), -1) : poll(polled.data(), 1, 100);
    if (ready < 0 && errno != EINTR) return;
    if (polled[0].revents != 0) return;
    has_room = true;
    for (size_t i = 1; i < polled.size(); ++i) {
      if (polled[i].revents != 0) has_room = AcceptOne(polled[i].fd, on_connection) && has_room;
    }
  }
}

bool ListenSocket::AcceptOne(int listen_fd, const std::function<void(int, int)>& on_connection) {
  int fd = accept4(listen_fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) return errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM;
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const int bound = static_cast<int>(std::min<rlim_t>(kDescriptorMax, limit.rlim_cur > kReserve ? limit.rlim_cur - kReserve : limit.rlim_cur));
  if (fd >= bound) {
    close(fd);
    return true;
  }
  on_connection(listen_fd, fd);
  return true;
}

}  // namespace meshnet
