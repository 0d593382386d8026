#include "cli/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "cli/child_process.h"
#include "cli/report.h"
#include "cli/restart_policy.h"

namespace meshnet::cli {
namespace {

constexpr size_t kReadyLineMax = 4096;

// What a worker tells by its exit code will not be different the next time.
bool IsLasting(int code) {
  return code == static_cast<int>(StatusCode::kUsage) || code == static_cast<int>(StatusCode::kBadConfiguration) ||
         code == static_cast<int>(StatusCode::kBadModel) || code == static_cast<int>(StatusCode::kOutOfMemory) ||
         code == static_cast<int>(StatusCode::kRefused);
}

}  // namespace

struct Supervisor::Impl {
  struct Worker {
    StageCommand command;
    RestartPolicy policy;
    ChildProcess process;
    Time ready_deadline;
    std::optional<Time> start_at;  // it is dead, and will be started then
    std::string ready_text;
    bool ready = false;
    bool was_ready = false;  // ever
  };

  Impl(SupervisorOptions given, std::vector<StageCommand> stages, const Clock& time) : options(std::move(given)), clock(time) {
    for (StageCommand& stage : stages) {
      workers.push_back({std::move(stage), RestartPolicy(options.restarts_max, options.restart_window), {}, {}, {}, {}, false, false});
    }
    wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  }
  ~Impl() { close(wake_fd); }

  void Wake() const {
    uint64_t one = 1;
    (void)!write(wake_fd, &one, sizeof one);
  }

  // The rest runs on the monitor thread; `mutex` guards what others read.
  void Monitor();
  void Spawn(Worker& worker);
  void Fail(const Status& status);
  void OnReadyReadable(Worker& worker);
  void OnEnd(Worker& worker);
  void OnDeath(Worker& worker, const std::string& cause);
  void StartAgain(Worker& worker);
  void CheckDeadlines();
  void EndAll();
  Duration Idle() const;
  void PollOnce(Duration limit);
  bool AllEnded() const {
    return std::all_of(workers.begin(), workers.end(), [](const Worker& worker) { return worker.process.pid < 0; });
  }

  const SupervisorOptions options;
  const Clock& clock;
  int wake_fd = -1;
  std::thread thread;

  mutable std::mutex mutex;
  std::condition_variable changed;
  std::vector<Worker> workers;
  std::optional<Status> failed;
  std::optional<StopKind> stop;
  std::vector<std::pair<size_t, std::string>> to_kill;
};

void Supervisor::Impl::Spawn(Worker& worker) {
  std::vector<std::string> arguments = worker.command.arguments;
  arguments.insert(arguments.end(), {"--listen", worker.command.address});
  Result<ChildProcess> child = StartChild(options.program, arguments);
  if (!child.ok()) {
    Fail(child.status());
    return;
  }
  fcntl(child->ready_fd, F_SETFL, O_NONBLOCK);
  std::lock_guard<std::mutex> lock(mutex);
  worker.process = *child;
  worker.ready = false;
  worker.ready_text.clear();
  worker.ready_deadline = clock.Now() + options.ready_limit;
}

void Supervisor::Impl::Fail(const Status& status) {
  std::lock_guard<std::mutex> lock(mutex);
  if (!failed) failed = status;
  changed.notify_all();
}

void Supervisor::Impl::OnReadyReadable(Worker& worker) {
  char buffer[512];
  ssize_t count = read(worker.process.ready_fd, buffer, sizeof buffer);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (count > 0 && worker.ready_text.size() < kReadyLineMax) worker.ready_text.append(buffer, static_cast<size_t>(count));
  size_t line_end = worker.ready_text.find('\n');
  if (count > 0 && line_end == std::string::npos) return;
  close(worker.process.ready_fd);
  worker.process.ready_fd = -1;
  if (line_end == std::string::npos) return;  // it ended before it was ready
  std::lock_guard<std::mutex> lock(mutex);
  worker.ready = true;
  worker.was_ready = true;
  changed.notify_all();
}

void Supervisor::Impl::OnEnd(Worker& worker) {
  int status = 0;
  if (waitpid(worker.process.pid, &status, WNOHANG) != worker.process.pid) return;
  bool ending = false;
  {
    std::lock_guard<std::mutex> lock(mutex);
    worker.process.CloseAll();
    worker.process.pid = -1;
    worker.ready = false;
    ending = stop.has_value() || failed.has_value();
    changed.notify_all();
  }
  if (ending) return;
  if (!worker.was_ready && WIFEXITED(status) && IsLasting(WEXITSTATUS(status))) {
    Fail(Status(static_cast<StatusCode>(WEXITSTATUS(status)), worker.command.label + " cannot start: its worker ended with " + DescribeEnd(status)));
    return;
  }
  OnDeath(worker, DescribeEnd(status));
}

void Supervisor::Impl::OnDeath(Worker& worker, const std::string& cause) {
  if (worker.policy.OnDeath(clock.Now()) == RestartPolicy::Verdict::kGiveUp) {
    Fail(PeerUnreachable(worker.command.label + ": its worker died again (" + cause + ") after " + std::to_string(options.restarts_max) +
                         " restarts in " + std::to_string(std::chrono::duration_cast<std::chrono::seconds>(options.restart_window).count()) + " s"));
    return;
  }
  Say(worker.command.label + ": its worker died (" + cause + "); starting it again");
  worker.start_at = clock.Now() + worker.policy.Pause();
}

void Supervisor::Impl::StartAgain(Worker& worker) {
  worker.start_at.reset();
  if (options.restore) {
    const Status restored = options.restore(static_cast<size_t>(&worker - workers.data()));
    if (!restored.ok()) Say(worker.command.label + ": " + restored.message());
  }
  Spawn(worker);
}

void Supervisor::Impl::CheckDeadlines() {
  auto end_worker = [](Worker& worker, const std::string& why) {
    Say(worker.command.label + ": its worker " + why + "; ending it");
    worker.ready_deadline = Time::max();
    kill(worker.process.pid, SIGKILL);
  };
  std::vector<std::pair<size_t, std::string>> doomed;
  {
    std::lock_guard<std::mutex> lock(mutex);
    doomed.swap(to_kill);
  }
  // Silence while it loads is no fault.
  for (auto& [index, why] : doomed) {
    if (workers[index].process.pid > 0 && workers[index].ready) end_worker(workers[index], why);
  }
  Time now = clock.Now();
  for (Worker& worker : workers) {
    if (worker.start_at && now >= *worker.start_at) StartAgain(worker);
    if (worker.process.pid > 0 && !worker.ready && now >= worker.ready_deadline) end_worker(worker, "was not ready in time");
  }
}

void Supervisor::Impl::PollOnce(Duration limit) {
  std::vector<pollfd> entries = {{wake_fd, POLLIN, 0}};
  for (Worker& worker : workers) {
    if (worker.process.pid_fd >= 0) entries.push_back({worker.process.pid_fd, POLLIN, 0});
    if (worker.process.ready_fd >= 0) entries.push_back({worker.process.ready_fd, POLLIN, 0});
  }
  int milliseconds = static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(limit).count());
  if (poll(entries.data(), entries.size(), milliseconds) <= 0) return;
  auto readable = [&entries](int fd) {
    return fd >= 0 && std::any_of(entries.begin(), entries.end(), [fd](const pollfd& entry) { return entry.fd == fd && entry.revents != 0; });
  };
  uint64_t count;
  if (entries[0].revents != 0) (void)!read(wake_fd, &count, sizeof count);
  for (Worker& worker : workers) {
    if (readable(worker.process.ready_fd)) OnReadyReadable(worker);
    if (readable(worker.process.pid_fd)) OnEnd(worker);
  }
}

// How long nothing has to be done unless a worker stirs.
Duration Supervisor::Impl::Idle() const {
  Duration idle = std::chrono::milliseconds(200);
  for (const Worker& worker : workers) {
    if (worker.start_at) idle = std::clamp<Duration>(*worker.start_at - clock.Now(), Duration(0), idle);
  }
  return idle;
}

void Supervisor::Impl::Monitor() {
  for (Worker& worker : workers) Spawn(worker);
  for (;;) {
    {
      std::lock_guard<std::mutex> lock(mutex);
      if (stop) break;
    }
    CheckDeadlines();
    PollOnce(Idle());
  }
  EndAll();
}

void Supervisor::Impl::EndAll() {
  auto signal_all = [this](int signal_number) {
    for (Worker& worker : workers) {
      if (worker.process.pid > 0) kill(worker.process.pid, signal_number);
    }
  };
  Time deadline = clock.Now() + options.stop_limit;
  bool killed = false;
  signal_all(SIGTERM);
  while (!AllEnded()) {
    bool now = false;
    {
      std::lock_guard<std::mutex> lock(mutex);
      now = *stop == StopKind::kNow;
    }
    if (!killed && (now || clock.Now() >= deadline)) {
      killed = true;
      signal_all(SIGKILL);
    }
    PollOnce(std::chrono::milliseconds(50));
  }
}

Supervisor::Supervisor(SupervisorOptions options, std::vector<StageCommand> stages, const Clock& clock)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(stages), clock)) {}

Supervisor::~Supervisor() { Stop(StopKind::kNow); }

// The kernel ends the children with the thread that started them, so one thread starts them all and lives until Stop.
void Supervisor::Launch() {
  impl_->thread = std::thread([this] { impl_->Monitor(); });
}

Status Supervisor::WaitReady(const std::function<bool()>& cancelled) {
  std::unique_lock<std::mutex> lock(impl_->mutex);
  for (;;) {
    if (impl_->failed) return *impl_->failed;
    if (std::all_of(impl_->workers.begin(), impl_->workers.end(), [](const Impl::Worker& worker) { return worker.ready; })) return OkStatus();
    lock.unlock();
    bool stop_asked = cancelled && cancelled();
    lock.lock();
    if (stop_asked) return Failure("stopped while the workers were starting");
    impl_->changed.wait_for(lock, std::chrono::milliseconds(50));
  }
}

std::vector<int> Supervisor::pids() const {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  std::vector<int> result;
  for (const Impl::Worker& worker : impl_->workers) result.push_back(worker.process.pid);
  return result;
}

size_t Supervisor::ready_count() const {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  return static_cast<size_t>(std::count_if(impl_->workers.begin(), impl_->workers.end(), [](const Impl::Worker& worker) { return worker.ready; }));
}

std::optional<Status> Supervisor::failure() const {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->failed;
}

void Supervisor::Kill(size_t stage, const std::string& why) {
  {
    std::lock_guard<std::mutex> lock(impl_->mutex);
    impl_->to_kill.emplace_back(stage, why);
  }
  impl_->Wake();
}

void Supervisor::RequestStop(StopKind kind) {
  {
    std::lock_guard<std::mutex> lock(impl_->mutex);
    if (!impl_->stop || kind == StopKind::kNow) impl_->stop = kind;  // never back from kNow
  }
  impl_->Wake();
}

bool Supervisor::ended() const {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->AllEnded();
}

void Supervisor::Stop(StopKind kind) {
  if (!impl_->thread.joinable()) return;
  RequestStop(kind);
  impl_->thread.join();
}

}  // namespace meshnet::cli
