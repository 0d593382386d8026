// Accepts connections and waits on the idle ones with one thread; a connection that has something to say gets a thread of the pool until it
// falls silent again.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "base/clock.h"
#include "base/status.h"
#include "gateway/growing_threads.h"
#include "gateway/http_connection.h"

namespace meshnet::gateway {

// Who answers.
class ConnectionServer {
 public:
  virtual ~ConnectionServer() = default;
  // Reads and answers the requests that are there. True: keep the connection open for more. Called on many threads, one connection each.
  virtual bool Serve(HttpConnection& connection) = 0;
};

struct ConnectionLoopOptions {
  Duration keep_alive = std::chrono::seconds(75);
  ConnectionLimits limits;
  // When requests wait for a thread, one that is being read for this long may be cut for them.
  Duration slow_read = std::chrono::seconds(2);
  size_t threads_max = 256;
  size_t connections_max = 4096;
};

class ConnectionLoop {
 public:
  // Takes over the listening socket, also when it fails. `server` outlives the loop.
  static Result<std::unique_ptr<ConnectionLoop>> Start(int listening, ConnectionLoopOptions options, std::shared_ptr<TlsContext> tls,
                                                       ConnectionServer& server);
  ~ConnectionLoop();

  // Closes all sockets and waits for all threads.
  void Stop();
  size_t connections() const;

 private:
  // Connections have one owner at a time, the list or a job; shared only because std::function must be copyable.
  struct Parked {
    std::shared_ptr<HttpConnection> connection;
    Time until;
    bool fresh = true;  // has not been served yet
  };
  using ParkedList = std::list<Parked>;

  ConnectionLoop(int listening, int poller, int wake, ConnectionLoopOptions options, std::shared_ptr<TlsContext> tls, ConnectionServer& server);
  void Loop();
  // How long the loop may sleep before a parked connection is due.
  int SleepMilliseconds();
  void Accept();
  bool MakeRoom();
  void Park(std::shared_ptr<HttpConnection> connection, bool fresh);
  // Takes a parked connection out of the poller; null when it is not parked.
  std::shared_ptr<HttpConnection> Unpark(int socket, bool* fresh);
  void Dispatch(std::shared_ptr<HttpConnection> connection, bool fresh);
  void ServeOn(std::shared_ptr<HttpConnection> connection, bool fresh);
  // Requests that wait for a thread take those of the slowest senders.
  void CutSlowReaders();
  void Expire();
  void Wake();

  const int listening_, poller_, wake_;
  const ConnectionLoopOptions options_;
  const std::shared_ptr<TlsContext> tls_;
  ConnectionServer& server_;

  mutable std::mutex mutex_;
  bool stopping_ = false;
  ParkedList parked_;  // in the order of `until`
  std::unordered_map<int, ParkedList::iterator> by_socket_;
  std::list<HttpConnection*> active_;  // being served, oldest first
  Time accept_again_{};                // no accepting before: the process has no descriptor left

  GrowingThreads threads_;
  std::thread thread_;
};

}  // namespace meshnet::gateway
