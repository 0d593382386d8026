#include "cli/embedded_cluster.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

#include "cli/report.h"
#include "wire/shard_grpc_client.h"

namespace meshnet::cli {
namespace {

// sun_path has 108 bytes; gRPC wants a closing zero.
constexpr size_t kSocketPathMax = 100;
constexpr Duration kConnectPause = std::chrono::milliseconds(50);
constexpr Duration kConnectTimeout = std::chrono::seconds(10);
// A worker answers Describe even while it computes, so one that misses this many questions in a row is stopped or stuck.
constexpr int kSilencesMax = 6;

// A port that is free now. Only used where a socket path would be too long.
std::string FreeLoopbackAddress() {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  bool bound = fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
               getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  if (fd >= 0) close(fd);
  return bound ? "127.0.0.1:" + std::to_string(ntohs(address.sin_port)) : "127.0.0.1:0";
}

// Different from all `others`.
std::string WorkerAddress(const std::string& folder, size_t stage, const std::vector<StageCommand>& others) {
  std::string path = folder + "/stage-" + std::to_string(stage) + ".sock";
  if (path.size() <= kSocketPathMax) return "unix:" + path;
  for (;;) {
    std::string address = FreeLoopbackAddress();
    if (std::none_of(others.begin(), others.end(), [&address](const StageCommand& other) { return other.address == address; })) return address;
  }
}

}  // namespace

// Asks every worker now and then whether it still answers; one that does not is ended, so that the supervisor starts it again.
class EmbeddedCluster::HangWatch {
 public:
  HangWatch(std::vector<ShardLink*> links, Supervisor& supervisor, Duration silence_limit, const Clock& clock)
      : links_(std::move(links)),
        supervisor_(supervisor),
        ask_every_(silence_limit / kSilencesMax),
        clock_(clock),
        silences_(links_.size(), 0),
        thread_([this] { Watch(); }) {}
  ~HangWatch() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

 private:
  // Shared with the callback, which may come after this watch has ended.
  struct Answers {
    std::mutex mutex;
    std::vector<bool> given;
  };

  void Watch() {
    for (;;) {
      auto answers = std::make_shared<Answers>();
      answers->given.resize(links_.size());
      for (size_t i = 0; i < links_.size(); ++i) {
        links_[i]->Describe(clock_.Now() + ask_every_, [answers, i](Reply<ShardDescription> reply) {
          std::lock_guard<std::mutex> lock(answers->mutex);
          answers->given[i] = std::holds_alternative<ShardDescription>(reply);
        });
      }
      std::unique_lock<std::mutex> lock(mutex_);
      if (wake_.wait_for(lock, ask_every_, [this] { return stop_; })) return;
      Count(*answers);
    }
  }

  void Count(Answers& answers) {
    std::lock_guard<std::mutex> lock(answers.mutex);
    for (size_t i = 0; i < links_.size(); ++i) {
      silences_[i] = answers.given[i] ? 0 : silences_[i] + 1;
      if (silences_[i] < kSilencesMax) continue;
      silences_[i] = 0;
      supervisor_.Kill(i, "has been silent for " + std::to_string(std::chrono::duration_cast<std::chrono::seconds>(ask_every_ * kSilencesMax).count()) + " s");
    }
  }

  std::vector<ShardLink*> links_;
  Supervisor& supervisor_;
  const Duration ask_every_;
  const Clock& clock_;
  std::vector<int> silences_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::thread thread_;
};

Result<ClusterPlan> PlanCluster(const OpenedModel& model, const SplitWish& wish, const WorkerSettings& settings, uint64_t resident_bytes) {
  Result<std::vector<LayerRange>> ranges = ChooseSplit(model, wish);
  if (!ranges.ok()) return ranges.status();
  ClusterPlan plan{*ranges, {}, settings};
  for (LayerRange range : plan.ranges) {
    Result<gguf::ShardPlan> shard = gguf::PlanShard(model.file, model.shape, range);
    if (!shard.ok()) return shard.status();
    Result<MemoryNeed> need = PredictMemory(model, *shard, settings);
    if (!need.ok()) return need.status();
    plan.needs.push_back(*need);
  }
  std::vector<MemoryNeed> all = plan.needs;
  if (resident_bytes > 0) {
    MemoryNeed own;
    own.weight_bytes = resident_bytes;
    all.push_back(own);
  }
  Status memory = CheckMemory(std::to_string(plan.ranges.size()) + " workers of " + model.shape.name, all);
  if (!memory.ok()) return memory;
  return plan;
}

EmbeddedCluster::EmbeddedCluster(PrivateFolder folder, ShardFiles files, const Clock& clock)
    : folder_(std::move(folder)), files_(std::move(files)), clock_(clock) {}

Result<std::unique_ptr<EmbeddedCluster>> EmbeddedCluster::Launch(const ClusterPlan& plan, ShardFiles files, SupervisorOptions options,
                                                                 const Clock& clock) {
  Result<PrivateFolder> folder = PrivateFolder::Create();
  if (!folder.ok()) return folder.status();
  std::unique_ptr<EmbeddedCluster> cluster(new EmbeddedCluster(std::move(*folder), std::move(files), clock));

  std::vector<StageCommand> stages;
  for (size_t i = 0; i < plan.ranges.size(); ++i) {
    StageCommand stage;
    stage.label = "stage " + std::to_string(i) + " " + plan.ranges[i].Text();
    stage.address = WorkerAddress(cluster->folder_.path(), i, stages);
    stage.arguments = {"worker", "--shard", cluster->files_.paths[i]};
    if (plan.ranges.size() > 1) stage.arguments.insert(stage.arguments.end(), {"--turn-lock", cluster->folder_.path() + "/turn.lock"});
    std::vector<std::string> settings = plan.settings.ToArguments();
    stage.arguments.insert(stage.arguments.end(), settings.begin(), settings.end());
    Result<std::unique_ptr<ShardLink>> link = ConnectShard(stage.address, TlsOptions());
    if (!link.ok()) return link.status();
    cluster->links_.push_back(std::move(*link));
    stages.push_back(std::move(stage));
  }
  cluster->route_ = std::make_unique<Route>(cluster->links(), clock);
  cluster->silence_limit_ = options.silence_limit;
  options.restore = [self = cluster.get(), more = std::move(options.restore)](size_t stage) {
    self->folder_.MakeAgain();
    return access(self->files_.paths[stage].c_str(), R_OK) == 0 || !more ? OkStatus() : more(stage);
  };
  cluster->supervisor_ = std::make_unique<Supervisor>(std::move(options), std::move(stages), clock);
  cluster->supervisor_->Launch();
  return cluster;
}

EmbeddedCluster::~EmbeddedCluster() { RequestStop(StopKind::kNow); }

void EmbeddedCluster::RequestStop(StopKind kind) {
  // The callers of the workers go first, so that their end is no fault to anybody.
  hang_watch_.reset();
  route_.reset();
  links_.clear();
  if (supervisor_) supervisor_->RequestStop(kind);
}

Status EmbeddedCluster::WaitReady(const std::function<bool()>& cancelled) {
  ProgressLine progress("starting workers:");
  Status ready = supervisor_->WaitReady([this, &cancelled, &progress] {
    progress.UpdateText(std::to_string(supervisor_->ready_count()) + " of " + std::to_string(links_.size()) + " are ready");
    return cancelled();
  });
  if (!ready.ok()) return ready;
  // A channel that looked before its worker listened is in its pause before the next try, and fails at once until then.
  Time deadline = clock_.Now() + kConnectTimeout;
  Status connected = route_->Connect(kConnectTimeout);
  while (connected.code() == StatusCode::kPeerUnreachable && clock_.Now() < deadline && !cancelled()) {
    std::this_thread::sleep_for(kConnectPause);
    connected = route_->Connect(kConnectTimeout);
  }
  if (!connected.ok()) return connected;
  if (silence_limit_ > Duration(0)) hang_watch_ = std::make_unique<HangWatch>(links(), *supervisor_, silence_limit_, clock_);
  return OkStatus();
}

std::vector<ShardLink*> EmbeddedCluster::links() const {
  std::vector<ShardLink*> pointers;
  for (const std::unique_ptr<ShardLink>& link : links_) pointers.push_back(link.get());
  return pointers;
}

}  // namespace meshnet::cli
