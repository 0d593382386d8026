// The socket a worker listens on, bound by ourselves: so that a taken port is told before the model is read, a name is bound on all its
// addresses or not at all, and a flood of connections can neither stop the listener nor use up all descriptors.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"
#include "wire/address.h"
#include "wire/tls_options.h"

namespace meshnet {

class ListenSocket {
 public:
  // kUsage: no address. kBadConfiguration names the address and why it cannot be bound. kRefused: plaintext off loopback without `insecure`.
  static Result<std::unique_ptr<ListenSocket>> Bind(const std::string& listen, const TlsOptions& tls);
  // Stops accepting; a socket in the file system is removed.
  ~ListenSocket();
  ListenSocket(const ListenSocket&) = delete;
  ListenSocket& operator=(const ListenSocket&) = delete;

  // With the real port.
  const Address& address() const { return address_; }

  // From here on `on_connection` owns each accepted descriptor (non-blocking, close-on-exec). Called on the socket's own thread. Once.
  void Accept(std::function<void(int listen_fd, int fd)> on_connection);
  // No connection is handed over after it returns. Idempotent.
  void StopAccepting();

 private:
  ListenSocket() = default;
  Status BindTcp(const TlsOptions& tls);
  Status BindUnix();
  void Loop(const std::function<void(int, int)>& on_connection);
  // False when the process has no room for more.
  bool AcceptOne(int listen_fd, const std::function<void(int, int)>& on_connection);

  Address address_;
  std::vector<int> fds_;
  bool bound_path_ = false;
  int wake_fd_ = -1;
  std::thread thread_;
};

// Lets the process open as many descriptors as it may, so that idle connections do not keep it from accepting.
void RaiseDescriptorLimit();

}  // namespace meshnet
