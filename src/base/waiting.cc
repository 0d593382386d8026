#include "base/waiting.h"

#include <thread>
#include <utility>

namespace meshnet {
namespace {

class ThreadWaiting : public Waiting {
 public:
  bool WaitFor(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, Duration at_most,
               const std::function<bool()>& holds) override {
    return changed.wait_for(lock, at_most, holds);
  }
  void Notify(std::condition_variable& changed) override { changed.notify_all(); }
  void Sleep(Duration duration) override { std::this_thread::sleep_for(duration); }
  std::unique_ptr<Background> Start(std::function<void()> work) override { return std::make_unique<Joined>(std::move(work)); }

 private:
  class Joined : public Background {
   public:
    explicit Joined(std::function<void()> work) : thread_(std::move(work)) {}
    ~Joined() override { thread_.join(); }

   private:
    std::thread thread_;
  };
};

}  // namespace

Waiting& Clock::waiting() const {
  static ThreadWaiting waiting;
  return waiting;
}

}  // namespace meshnet
