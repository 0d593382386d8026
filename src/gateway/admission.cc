#include "gateway/admission.h"

namespace meshnet::gateway {

std::shared_ptr<Admission::Pass> Admission::Enter() {
  {
    std::lock_guard lock(mutex_);
    if (inside_ >= requests_max_) return nullptr;
    ++inside_;
  }
  return std::make_shared<Pass>(*this);
}

void Admission::Leave() {
  {
    std::lock_guard lock(mutex_);
    --inside_;
    // Under the lock: whoever waits may destroy this object as soon as it sees nobody inside.
    if (inside_ == 0) empty_.notify_all();
  }
}

void Admission::BeginDrain() {
  std::lock_guard lock(mutex_);
  draining_ = true;
}

bool Admission::draining() const {
  std::lock_guard lock(mutex_);
  return draining_;
}

bool Admission::WaitEmpty(Duration limit) {
  std::unique_lock lock(mutex_);
  return empty_.wait_for(lock, limit, [&] { return inside_ == 0; });
}

}  // namespace meshnet::gateway
