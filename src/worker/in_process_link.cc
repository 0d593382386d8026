#include "worker/in_process_link.h"

#include <atomic>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "wire/convert.h"
#include "wire/deadline_timer.h"
#include "wire/validate.h"

namespace meshnet {
namespace {

class InProcessLink : public ShardLink {
 public:
  InProcessLink(ShardHost& host, std::string name) : host_(host), name_(std::move(name)), calls_(std::make_shared<Calls>()) {}
  ~InProcessLink() override {
    host_.EndStream(calls_);
    calls_->FailAll(name_ + ": the link was closed");
  }

  void Describe(Time, Done<ShardDescription> done) override {
    // Not on the caller's thread: it may hold a lock that `done` wants.
    calls_->timer.Add(Time::min(), [this, done = std::move(done)] { done(host_.description()); });
  }
  void Open(OpenRequest request, Time deadline, Done<OpenReply> done) override {
    host_.Open(std::move(request), Guarded<OpenReply>(deadline, std::move(done)));
  }
  void Release(SessionKey key, Time deadline, Done<ReleaseOutcome> done) override {
    host_.Release(key, Guarded<ReleaseOutcome>(deadline, std::move(done)));
  }
  void Stats(Time deadline, Done<ShardStats> done) override { host_.Stats(Guarded<ShardStats>(deadline, std::move(done))); }
  void Drain(Time, Done<ShardState> done) override {
    calls_->timer.Add(Time::min(), [this, done = std::move(done)] {
      host_.BeginDrain(/*then_end=*/false);
      done(host_.description().state);
    });
  }

  void Forward(const Step& step, Time deadline, Done<StepResult> done) override {
    const Time now = std::chrono::steady_clock::now();
    const uint64_t id = calls_->Add(deadline, std::move(done), name_);
    // Through the wire's form and its checks, so that this link cannot be kinder than the network.
    const shard::v1::Step wire = ToProto(step, id, now);
    std::variant<IncomingStep, Refusal> read = ValidateStep(wire, host_.shape(), now);
    if (Refusal* refusal = std::get_if<Refusal>(&read)) {
      calls_->timer.Add(Time::min(), [calls = calls_.get(), id, refusal = std::move(*refusal)] { calls->OnAnswers({StepAnswer{id, refusal}}); });
      return;
    }
    std::vector<SubmittedStep> steps;
    steps.push_back({id, std::move(std::get<IncomingStep>(read))});
    steps.back().incoming.step.deadline = step.deadline;  // a time of the host's clock, whichever that is
    host_.Submit(std::move(steps), {}, calls_, wire.input().payload().size());
  }
  void Cancel(SessionKey key) override { host_.Submit({}, {key}, calls_, 0); }
  std::string address() const override { return name_; }

 private:
  // Steps in flight; the host holds it as the sink of their answers.
  struct Calls : StepAnswerSink, std::enable_shared_from_this<Calls> {
    struct Call {
      Done<StepResult> done;
      DeadlineTimer::Id timer = 0;
    };

    uint64_t Add(Time deadline, Done<StepResult> done, const std::string& name) {
      std::lock_guard lock(mutex);
      const uint64_t id = next_id++;
      Call& call = calls[id];
      call.done = std::move(done);
      call.timer = timer.Add(deadline, [this, id, name] {
        if (std::optional<Call> late = Take(id)) late->done(TransportFault{name + ": no answer within the step's deadline"});
      });
      return id;
    }
    std::optional<Call> Take(uint64_t id) {
      std::lock_guard lock(mutex);
      auto node = calls.extract(id);
      if (node.empty()) return std::nullopt;
      timer.Remove(node.mapped().timer);
      return std::move(node.mapped());
    }
    void OnAnswers(std::vector<StepAnswer> answers) override {
      for (StepAnswer& answer : answers) {
        std::optional<Call> call = Take(answer.request_id);
        if (!call) continue;
        if (Refusal* refusal = std::get_if<Refusal>(&answer.outcome)) {
          call->done(std::move(*refusal));
        } else {
          const RecordedResult& recorded = std::get<RecordedResult>(answer.outcome);
          StepResult result = recorded.result->Copy();
          result.replayed = recorded.replayed;
          call->done(std::move(result));
        }
      }
    }
    void FailAll(const std::string& why) {
      std::unordered_map<uint64_t, Call> failed;
      {
        std::lock_guard lock(mutex);
        failed.swap(calls);
      }
      for (auto& [id, call] : failed) {
        timer.Remove(call.timer);
        call.done(TransportFault{why});
      }
    }

    std::mutex mutex;  // guards the two below
    std::unordered_map<uint64_t, Call> calls;
    uint64_t next_id = 1;
    DeadlineTimer timer;  // last: its functions use the above
  };

  // `done` exactly once: from the host, or from the deadline.
  template <typename T>
  Done<T> Guarded(Time deadline, Done<T> done) {
    struct Once {
      std::atomic<bool> called{false};
      Done<T> done;
    };
    auto once = std::make_shared<Once>();
    once->done = std::move(done);
    auto call = [once](Reply<T> reply) {
      if (!once->called.exchange(true)) once->done(std::move(reply));
    };
    DeadlineTimer::Id timer = calls_->timer.Add(deadline, [call, name = name_] { call(TransportFault{name + ": no answer within the deadline"}); });
    return [call, timer, calls = std::weak_ptr<Calls>(calls_)](Reply<T> reply) {
      if (std::shared_ptr<Calls> alive = calls.lock()) alive->timer.Remove(timer);
      call(std::move(reply));
    };
  }

  ShardHost& host_;
  const std::string name_;
  const std::shared_ptr<Calls> calls_;  // shared with the host's pending steps
};

}  // namespace

std::unique_ptr<ShardLink> ConnectInProcess(ShardHost& host, std::string name) { return std::make_unique<InProcessLink>(host, std::move(name)); }

}  // namespace meshnet
