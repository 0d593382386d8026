#include "worker/shard_worker.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <optional>
#include <thread>
#include <utility>

#include "base/system_clock.h"
#include "worker/worker_server.h"

namespace meshnet {
namespace {

// What a stop at once waits for an engine call before the process exits under it.
constexpr Duration kStopGrace = std::chrono::milliseconds(500);
// Time for the last answers (kPoisoned) to leave.
constexpr Duration kPoisonGrace = std::chrono::milliseconds(300);

std::atomic<int> signal_fd{-1};

void OnSignal(int) {
  const int saved = errno;
  uint64_t one = 1;
  [[maybe_unused]] ssize_t wrote = write(signal_fd.load(), &one, sizeof one);
  errno = saved;
}

class EventFd {
 public:
  EventFd() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  ~EventFd() {
    if (fd_ >= 0) close(fd_);
  }
  EventFd(const EventFd&) = delete;
  EventFd& operator=(const EventFd&) = delete;
  int fd() const { return fd_; }
  void Signal() const {
    uint64_t one = 1;
    [[maybe_unused]] ssize_t wrote = write(fd_, &one, sizeof one);
  }
  // How often it was signalled since the last call.
  uint64_t Take() const {
    uint64_t count = 0;
    return read(fd_, &count, sizeof count) == sizeof count ? count : 0;
  }

 private:
  int fd_;
};

// SIGTERM and SIGINT count on an event while it lives; a closed pipe kills nobody.
class SignalGuard {
 public:
  explicit SignalGuard(const EventFd& event) {
    signal_fd = event.fd();
    struct sigaction action {};
    action.sa_handler = OnSignal;
    sigaction(SIGTERM, &action, &term_);
    sigaction(SIGINT, &action, &interrupt_);
    action.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &action, &pipe_);
  }
  ~SignalGuard() {
    sigaction(SIGTERM, &term_, nullptr);
    sigaction(SIGINT, &interrupt_, nullptr);
    sigaction(SIGPIPE, &pipe_, nullptr);
    signal_fd = -1;
  }

 private:
  struct sigaction term_, interrupt_, pipe_;
};

void TellReady(int fd, const std::string& address) {
  if (fd < 0) return;
  const std::string line = address + "\n";
  [[maybe_unused]] ssize_t wrote = write(fd, line.data(), line.size());
  close(fd);
}

// Waits for what the outside says and takes the worker through serving, draining and its end.
class WorkerLife {
 public:
  WorkerLife(const ShardWorkerOptions& options, const EventFd& signals, const EventFd& state, WorkerServer& server)
      : options_(options), signals_(signals), state_(state), server_(server) {}

  Status Run() {
    while (!end_) {
      Poll();
      Look();
    }
    return status_;
  }

 private:
  void Poll() {
    pollfd polled[] = {{signals_.fd(), POLLIN, 0}, {state_.fd(), POLLIN, 0}, {options_.lifeline_fd, POLLIN, 0}};
    int timeout = -1;
    if (drain_end_) {
      auto left = std::chrono::ceil<std::chrono::milliseconds>(*drain_end_ - std::chrono::steady_clock::now()).count();
      timeout = static_cast<int>(std::clamp<int64_t>(left, 0, 3600 * 1000));
    }
    poll(polled, options_.lifeline_fd >= 0 ? 3 : 2, timeout);
    if (options_.lifeline_fd >= 0 && polled[2].revents != 0 && LifelineEnded()) AtOnce();
    signal_count_ += signals_.Take();
    state_.Take();
  }

  // Bytes on the lifeline mean nothing; only its end does.
  bool LifelineEnded() const {
    char byte;
    ssize_t got = read(options_.lifeline_fd, &byte, 1);
    return got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN);
  }

  void AtOnce() { end_ = at_once_ = true; }

  // Whoever started us tells people what they need to know.
  bool has_parent() const { return options_.lifeline_fd >= 0; }

  void Look() {
    ShardHost& host = server_.host();
    if (!told_ready_ && host.description().state == ShardState::kServing) {
      told_ready_ = true;
      if (!has_parent()) std::fprintf(stderr, "meshnet: serving layers %s at %s\n", host.description().range.Text().c_str(), server_.address().c_str());
      TellReady(options_.ready_fd, server_.address());
    }
    if (Status trouble = host.trouble(); !trouble.ok()) {
      // What is on its way out says why; then this process must not answer any more.
      if (host.description().state == ShardState::kPoisoned) std::this_thread::sleep_for(kPoisonGrace);
      status_ = trouble;
      end_ = true;
      return;
    }
    if (signal_count_ > 1) return AtOnce();
    if (signal_count_ == 1 && !drain_end_) BeginDrain();
    if (drain_end_ && (host.drained() || std::chrono::steady_clock::now() >= *drain_end_)) end_ = true;
  }

  void BeginDrain() {
    // While the model is read there is nothing to drain.
    if (!told_ready_) return AtOnce();
    if (!has_parent()) std::fprintf(stderr, "meshnet: draining layers %s\n", server_.host().description().range.Text().c_str());
    drain_end_ = std::chrono::steady_clock::now() + options_.drain_limit;
    server_.host().BeginDrain(/*then_end=*/true);
  }

  const ShardWorkerOptions& options_;
  const EventFd& signals_;
  const EventFd& state_;
  WorkerServer& server_;
  uint64_t signal_count_ = 0;
  bool told_ready_ = false;
  bool end_ = false;
  bool at_once_ = false;
  std::optional<Time> drain_end_;
  Status status_;
};

// Ends the server, or the process when an engine call or a model that loads does not let go.
void EndServer(std::unique_ptr<WorkerServer> server, const Status& status) {
  const std::string socket_path = server->address().starts_with("unix:") ? server->address().substr(5) : "";
  std::promise<void> ended;
  std::future<void> wait = ended.get_future();
  std::thread ending([&] {
    server.reset();
    ended.set_value();
  });
  if (wait.wait_for(kStopGrace) != std::future_status::ready) {
    if (!socket_path.empty()) unlink(socket_path.c_str());
    std::fflush(nullptr);
    std::_Exit(status.exit_code());
  }
  ending.join();
}

}  // namespace

Status RunShardWorker(const ShardWorkerOptions& options, ShardDescription description,
                      const std::function<Result<std::unique_ptr<Engine>>()>& make_engine) {
  EventFd signals, state;
  if (signals.fd() < 0 || state.fd() < 0) return Failure("no descriptors left");
  SignalGuard guard(signals);
  if (description.incarnation.is_zero()) description.incarnation = RandomId<Incarnation>();
  description.process_id = static_cast<uint64_t>(getpid());
  SystemClock clock;
  Result<std::unique_ptr<WorkerServer>> server =
      WorkerServer::Start(options, std::move(description), make_engine, clock, [&state](ShardState) { state.Signal(); });
  if (!server.ok()) return server.status();
  Status status = WorkerLife(options, signals, state, **server).Run();
  EndServer(std::move(server).value(), status);
  return status;
}

}  // namespace meshnet
