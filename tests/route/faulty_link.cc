#include "faulty_link.h"

#include <atomic>
#include <deque>
#include <random>

namespace meshnet {

struct FaultyLink::Shared {
  std::mutex mutex;  // guards everything below; no callback under it
  ShardLink* inner = nullptr;
  bool dead = false;
  std::mt19937_64 random;
  uint64_t faults = 0;
  uint64_t forwards = 0;
  std::function<void(uint64_t)> on_forward;
  std::function<void()> on_describe_dead;
  std::function<void()> on_cancel;
  uint64_t next_call = 1;
  std::map<uint64_t, std::function<void()>> outstanding;  // by call: ends it as a fault

  std::condition_variable arrived;  // for the postman
  std::vector<std::function<void()>> late;
  bool closing = false;
};

FaultyLink::FaultyLink(ShardLink* inner, std::string address, uint64_t seed, FaultRates rates)
    : address_(std::move(address)), rates_(rates), shared_(std::make_shared<Shared>()) {
  shared_->inner = inner;
  shared_->random.seed(seed);
  // Answers that are late go through one thread that delivers whatever it finds in an order drawn by lot.
  postman_ = std::thread([shared = shared_] {
    std::unique_lock lock(shared->mutex);
    for (;;) {
      shared->arrived.wait(lock, [&] { return shared->closing || !shared->late.empty(); });
      if (shared->late.empty()) return;
      const size_t pick = shared->random() % shared->late.size();
      std::function<void()> deliver = std::move(shared->late[pick]);
      shared->late.erase(shared->late.begin() + static_cast<ptrdiff_t>(pick));
      lock.unlock();
      std::this_thread::yield();
      deliver();
      lock.lock();
    }
  });
}

FaultyLink::~FaultyLink() {
  Kill();
  {
    std::lock_guard lock(shared_->mutex);
    shared_->closing = true;
  }
  shared_->arrived.notify_all();
  postman_.join();
}

void FaultyLink::Kill() {
  std::map<uint64_t, std::function<void()>> ended;
  {
    std::lock_guard lock(shared_->mutex);
    shared_->dead = true;
    ended.swap(shared_->outstanding);
  }
  for (auto& [call, fail] : ended) fail();
}

void FaultyLink::Revive(ShardLink* inner) {
  std::lock_guard lock(shared_->mutex);
  shared_->inner = inner;
  shared_->dead = false;
}

void FaultyLink::OnForward(std::function<void(uint64_t)> hook) {
  std::lock_guard lock(shared_->mutex);
  shared_->on_forward = std::move(hook);
}

void FaultyLink::OnDescribeDead(std::function<void()> hook) {
  std::lock_guard lock(shared_->mutex);
  shared_->on_describe_dead = std::move(hook);
}

void FaultyLink::OnCancel(std::function<void()> hook) {
  std::lock_guard lock(shared_->mutex);
  shared_->on_cancel = std::move(hook);
}

uint64_t FaultyLink::faults() const {
  std::lock_guard lock(shared_->mutex);
  return shared_->faults;
}

ShardLink* FaultyLink::inner() const {
  std::lock_guard lock(shared_->mutex);
  return shared_->inner;
}

FaultyLink::Fate FaultyLink::Draw() {
  std::lock_guard lock(shared_->mutex);
  if (shared_->dead) return Fate::kDead;
  uint64_t roll = shared_->random() % 1000;
  const std::pair<Fate, uint32_t> chances[] = {{Fate::kDrop, rates_.drop},
                                               {Fate::kLoseReply, rates_.lose_reply},
                                               {Fate::kRepeatBefore, rates_.repeat / 2},
                                               {Fate::kRepeatAfter, rates_.repeat - rates_.repeat / 2},
                                               {Fate::kDelay, rates_.delay}};
  for (const auto& [fate, chance] : chances) {
    if (roll < chance) {
      ++shared_->faults;
      return fate;
    }
    roll -= chance;
  }
  return Fate::kPass;
}

// Registers a call that will be answered once: by the inner link, or as a fault by Kill.
template <typename T>
ShardLink::Done<T> FaultyLink::Track(Done<T> done, Fate fate) {
  auto shared = shared_;
  auto kept = std::make_shared<Done<T>>(std::move(done));  // shared by the two ways a call can end
  uint64_t call = 0;
  {
    std::lock_guard lock(shared->mutex);
    call = shared->next_call++;
    shared->outstanding[call] = [kept] { (*kept)(TransportFault{"the link was killed"}); };
  }
  return [shared, kept, call, fate](Reply<T> reply) {
    {
      std::lock_guard lock(shared->mutex);
      if (shared->outstanding.erase(call) == 0) return;  // killed
      if (fate == Fate::kDelay && !shared->closing) {
        shared->late.push_back([kept, late = std::make_shared<Reply<T>>(std::move(reply))] { (*kept)(std::move(*late)); });
        shared->arrived.notify_all();
        return;
      }
    }
    if (fate == Fate::kLoseReply) reply = TransportFault{"the answer was lost"};
    (*kept)(std::move(reply));
  };
}

void FaultyLink::Describe(Time deadline, Done<ShardDescription> done) {
  // A lost Describe only makes a repair take its next, slower turn.
  std::function<void()> hook;
  bool dead = false;
  {
    std::lock_guard lock(shared_->mutex);
    dead = shared_->dead;
    if (dead) hook = shared_->on_describe_dead;
  }
  if (hook) hook();
  if (dead) return done(TransportFault{"dead"});
  inner()->Describe(deadline, Track<ShardDescription>(std::move(done), Fate::kPass));
}

void FaultyLink::Open(OpenRequest request, Time deadline, Done<OpenReply> done) {
  const Fate fate = Draw();
  if (fate == Fate::kDead || fate == Fate::kDrop) return done(TransportFault{"the request was lost"});
  if (fate == Fate::kRepeatBefore || fate == Fate::kRepeatAfter) inner()->Open(request, deadline, [](Reply<OpenReply>) {});
  inner()->Open(std::move(request), deadline, Track<OpenReply>(std::move(done), fate));
}

void FaultyLink::Forward(const Step& step, Time deadline, Done<StepResult> done) {
  std::function<void(uint64_t)> hook;
  uint64_t number = 0;
  {
    std::lock_guard lock(shared_->mutex);
    number = ++shared_->forwards;
    hook = shared_->on_forward;
  }
  if (hook) hook(number);
  const Fate fate = Draw();
  if (fate == Fate::kDead || fate == Fate::kDrop) return done(TransportFault{"the request was lost"});
  if (fate == Fate::kRepeatBefore) inner()->Forward(step, deadline, [](Reply<StepResult>) {});
  if (fate == Fate::kRepeatAfter) {
    // The repeat arrives when the answer is already on its way: a message that was stuck somewhere.
    auto repeat = std::make_shared<Step>(step.Copy());
    ShardLink* to = inner();
    done = [done = std::move(done), repeat, to, deadline](Reply<StepResult> reply) {
      to->Forward(*repeat, deadline, [](Reply<StepResult>) {});
      done(std::move(reply));
    };
  }
  inner()->Forward(step, deadline, Track<StepResult>(std::move(done), fate));
}

void FaultyLink::Cancel(SessionKey key) {
  std::function<void()> hook;
  {
    std::lock_guard lock(shared_->mutex);
    hook = shared_->on_cancel;
  }
  if (hook) hook();
  const Fate fate = Draw();
  if (fate != Fate::kDead && fate != Fate::kDrop) inner()->Cancel(key);
}

void FaultyLink::Release(SessionKey key, Time deadline, Done<ReleaseOutcome> done) {
  bool dead = false;
  {
    std::lock_guard lock(shared_->mutex);
    dead = shared_->dead;
  }
  if (dead) return done(TransportFault{"dead"});
  // Never lost: the tests count what is left after it.
  inner()->Release(key, deadline, Track<ReleaseOutcome>(std::move(done), Fate::kPass));
}

void FaultyLink::Stats(Time deadline, Done<ShardStats> done) { inner()->Stats(deadline, std::move(done)); }
void FaultyLink::Drain(Time deadline, Done<ShardState> done) { inner()->Drain(deadline, std::move(done)); }

}  // namespace meshnet
