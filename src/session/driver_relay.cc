// Rows that go on to the next stage without the session's thread.
#include <utility>

#include "session/driver_impl.h"

namespace meshnet {

DrivenSession::Impl::Relay::Opened::Opened(Impl& session, Pass& pass) : relay_(*session.relay) {
  std::lock_guard lock(relay_.mutex);
  relay_.session = &session;
  relay_.pass = &pass;
}

DrivenSession::Impl::Relay::Opened::~Opened() {
  std::lock_guard lock(relay_.mutex);
  relay_.pass = nullptr;
}

bool DrivenSession::Impl::Relay::Take(LinkAnswer& answer) {
  const auto* reply = std::get_if<Reply<StepResult>>(&answer.reply);
  if (reply == nullptr || !std::holds_alternative<StepResult>(*reply)) return false;
  std::lock_guard lock(mutex);
  if (pass == nullptr || sending || answer.serial != session->serial || answer.stage + 1 == session->view->stages.size()) return false;
  sending = true;
  try {
    session->TakeAnswer(*pass, std::move(answer));
    session->SendAll(*pass, session->clock.Now());
    if (pass->stuck()) session->inbox->Wake();  // rows that fail a check
  } catch (...) {
    failure = std::current_exception();
    pass = nullptr;
    session->inbox->Wake();
  }
  sending = false;
  return true;
}

void DrivenSession::Impl::Relay::Rethrow() {
  std::lock_guard lock(mutex);
  if (failure) std::rethrow_exception(std::exchange(failure, nullptr));
}

}  // namespace meshnet
