#include "fiber.h"

#include <sys/mman.h>

#include <utility>
#include <vector>

#include "base/check.h"
#include "fiber_switch.h"

namespace meshnet::sim {
namespace {

constexpr size_t kStackBytes = 512 << 10;
constexpr size_t kGuardBytes = 64 << 10;

Fiber* current = nullptr;
// The stack that resumes fibers, as a sanitizer knows it.
const void* outside_bottom = nullptr;
size_t outside_size = 0;

// Stacks are used again by later fibers, since mapping one costs more than what most fibers do.
std::vector<void*>& IdleStacks() {
  static std::vector<void*> stacks;
  return stacks;
}

void* TakeStack() {
  std::vector<void*>& idle = IdleStacks();
  if (!idle.empty()) {
    void* stack = idle.back();
    idle.pop_back();
    return stack;
  }
  void* mapped = mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  MESHNET_CHECK(mapped != MAP_FAILED);
  MESHNET_CHECK(mprotect(mapped, kGuardBytes, PROT_NONE) == 0);
  return static_cast<char*>(mapped) + kGuardBytes;
}

}  // namespace

Fiber::Fiber(std::function<void()> work) : work_(std::move(work)), stack_(TakeStack()) {
  MESHNET_CHECK(getcontext(&own_) == 0);
  own_.uc_stack.ss_sp = stack_;
  own_.uc_stack.ss_size = kStackBytes;
  own_.uc_link = nullptr;
  makecontext(&own_, &Fiber::Enter, 0);
}

Fiber::~Fiber() {
  MESHNET_CHECK(done_ || !begun_);
  IdleStacks().push_back(stack_);
}

Fiber* Fiber::Current() { return current; }

void Fiber::Enter() {
  SwitchEnds(nullptr, &outside_bottom, &outside_size);
  Fiber& self = *current;
  self.work_();
  self.work_ = nullptr;
  self.done_ = true;
  SwitchBegins(outside_bottom, outside_size, true);
  setcontext(&self.outside_);
}

void Fiber::Resume() {
  MESHNET_CHECK(current == nullptr && !done_);
  begun_ = true;
  current = this;
  void* token = SwitchBegins(stack_, kStackBytes, false);
  MESHNET_CHECK(swapcontext(&outside_, &own_) == 0);
  SwitchEnds(token, nullptr, nullptr);
  current = nullptr;
}

void Fiber::Yield() {
  MESHNET_CHECK(current == this);
  void* token = SwitchBegins(outside_bottom, outside_size, false);
  MESHNET_CHECK(swapcontext(&own_, &outside_) == 0);
  SwitchEnds(token, &outside_bottom, &outside_size);
}

}  // namespace meshnet::sim
