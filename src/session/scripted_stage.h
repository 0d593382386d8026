// For tests: one stage of a route behind a ScriptedLink. It keeps honest logs of token ids, replays like a shard, and strikes when told to.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "protocol/prefix_digest.h"
#include "session/scripted_link.h"

namespace meshnet {

// What the tail of scripted stages samples after `log`.
inline Token ScriptedToken(std::span<const Token> log, uint32_t vocabulary) {
  uint64_t hash = 1469598103934665603u;
  for (Token token : log) hash = (hash ^ static_cast<uint64_t>(token)) * 1099511628211u;
  return static_cast<Token>((hash >> 20) % vocabulary);
}

class ScriptedStage {
 public:
  // What happens to one call instead of the truth; nothing: the truth after all.
  using Strike = std::function<std::optional<Reply<StepResult>>(const Step&)>;
  using OpenStrike = std::function<std::optional<Reply<OpenReply>>(const OpenRequest&)>;

  ScriptedStage(std::string address, ShardDescription description) : link(std::move(address)), description_(std::move(description)) {
    link.on_describe = [this]() -> Reply<ShardDescription> {
      std::lock_guard lock(mutex_);
      return description_;
    };
    link.on_open = [this](const OpenRequest& request) { return Open(request); };
    link.on_forward = [this](const Step& step) { return Forward(step); };
    link.on_release = [this](const SessionKey& key) { return Release(key); };
    link.on_cancel = [this](const SessionKey&) {
      std::lock_guard lock(mutex_);
      ++cancels_;
    };
  }

  // The next calls meet these, the first first.
  void Strike1(Strike strike) { Locked([&] { strikes_.push_back(std::move(strike)); }); }
  void StrikeOpen(OpenStrike strike) { Locked([&] { open_strikes_.push_back(std::move(strike)); }); }
  void Refuse1(Reason reason, Detail detail = Detail::kNone) {
    Strike1([=, this](const Step& step) { return std::optional<Reply<StepResult>>(RefusalOf(step, reason, detail)); });
  }
  // In a strike only.
  Refusal RefusalOf(const Step& step, Reason reason, Detail detail) const {
    Refusal refusal;
    refusal.reason = reason;
    refusal.detail = detail;
    refusal.message = "scripted";
    if (const auto found = sessions_.find(step.key.session); found != sessions_.end() && found->second.epoch == step.key.epoch) {
      const Session& session = found->second;
      refusal.session = SessionSnapshot{PastLen(static_cast<uint32_t>(session.log.size())), DigestOfPrefix(session.salt, session.log),
                                        session.last.Next(), StepSeq(session.last.value + 4)};
    }
    return refusal;
  }
  void ForgetStrikes() { Locked([&] { strikes_.clear(); }); }
  // The step is done, but its reply is lost.
  void LoseReply1() {
    Strike1([this](const Step& step) {
      Do(step);
      return std::optional<Reply<StepResult>>(TransportFault{"scripted loss"});
    });
  }
  void Drop1() {
    Strike1([](const Step&) { return std::optional<Reply<StepResult>>(TransportFault{"scripted drop"}); });
  }
  // A new process at the same address: all sessions are gone.
  void Restart() {
    Locked([&] {
      ++description_.incarnation.bytes[0];
      sessions_.clear();
    });
  }
  void Forget(const SessionId& id) { Locked([&] { sessions_.erase(id); }); }

  // "open e1", "0+5", "decode 5", "release e1": what was asked and not struck.
  std::vector<std::string> calls() const {
    std::lock_guard lock(mutex_);
    return calls_;
  }
  std::vector<Step> TakeSteps() {
    std::lock_guard lock(mutex_);
    return std::move(steps_);
  }
  size_t sessions_live() const {
    std::lock_guard lock(mutex_);
    return sessions_.size();
  }
  int cancels() const {
    std::lock_guard lock(mutex_);
    return cancels_;
  }

  ScriptedLink link;

 private:
  struct Session {
    Epoch epoch;
    std::string salt;
    std::vector<Token> log;
    StepSeq last;
    std::optional<StepResult> reply;  // of `last`
  };

  template <typename Body>
  void Locked(Body body) {
    std::lock_guard lock(mutex_);
    body();
  }

  Reply<OpenReply> Open(const OpenRequest& request) {
    std::lock_guard lock(mutex_);
    if (!open_strikes_.empty()) {
      OpenStrike strike = std::move(open_strikes_.front());
      open_strikes_.pop_front();
      if (auto reply = strike(request)) return std::move(*reply);
    }
    calls_.push_back("open e" + std::to_string(request.key.epoch.value));
    Session& session = sessions_[request.key.session];
    if (session.epoch > request.key.epoch) {
      Refusal refusal;
      refusal.reason = Reason::kEpochStale;
      return refusal;
    }
    if (session.epoch < request.key.epoch) session = {request.key.epoch, request.cache_salt, {}, {}, {}};
    OpenReply reply;
    reply.incarnation = description_.incarnation;
    reply.past_len = PastLen(static_cast<uint32_t>(session.log.size()));
    reply.digest = DigestOfPrefix(session.salt, session.log);
    reply.next_step = session.last.Next();
    reply.credit = {StepSeq(session.last.value + 4), 1000};
    reply.reserved_tokens = description_.limits.context_tokens;
    return reply;
  }

  Reply<StepResult> Forward(const Step& step) {
    std::lock_guard lock(mutex_);
    if (!strikes_.empty()) {
      Strike strike = std::move(strikes_.front());
      strikes_.pop_front();
      if (auto reply = strike(step)) return std::move(*reply);
    }
    return Do(step);
  }

  Reply<StepResult> Do(const Step& step) {
    const auto found = sessions_.find(step.key.session);
    if (step.incarnation != description_.incarnation) return RefusalOf(step, Reason::kCacheMiss, Detail::kIncarnation);
    if (found == sessions_.end()) return RefusalOf(step, Reason::kCacheMiss, Detail::kNoSession);
    Session& session = found->second;
    if (step.key.epoch < session.epoch) return RefusalOf(step, Reason::kEpochStale, Detail::kNone);
    if (step.seq == session.last && session.reply) return session.reply->Copy();
    if (step.seq != session.last.Next()) return RefusalOf(step, Reason::kStepGap, Detail::kNone);
    if (step.start.value > session.log.size() || (step.kind == StepKind::kDecode && step.start.value != session.log.size())) {
      return RefusalOf(step, Reason::kCacheMiss, Detail::kPastMismatch);
    }
    if (DigestOfPrefix(session.salt, std::span(session.log).first(step.start.value)) != step.prefix_digest) {
      return RefusalOf(step, Reason::kCacheMiss, Detail::kDigestMismatch);
    }
    calls_.push_back(step.kind == StepKind::kDecode ? "decode " + std::to_string(step.start.value)
                                                    : std::to_string(step.start.value) + "+" + std::to_string(step.tokens.size()));
    session.log.resize(step.start.value);
    session.log.insert(session.log.end(), step.tokens.begin(), step.tokens.end());
    session.last = step.seq;
    session.reply = ResultOf(step, session);
    steps_.push_back(Bare(step));
    return session.reply->Copy();
  }

  StepResult ResultOf(const Step& step, const Session& session) const {
    StepResult result;
    result.seq = step.seq;
    result.past_len = PastLen(static_cast<uint32_t>(session.log.size()));
    result.digest = DigestOfPrefix(session.salt, session.log);
    result.credit = {StepSeq(step.ack.value + 4), 1000};
    const auto rows = static_cast<uint32_t>(step.tokens.size());
    const uint32_t width = description_.is_tail() ? description_.vocabulary_size : description_.boundary_width;
    if (!description_.is_tail() || step.logits_wanted) result.output = HiddenState(rows, width, std::vector<float>(size_t{rows} * width));
    if (description_.is_tail() && step.rows == RowsWanted::kLast) {
      result.sampled.emplace_back();
      result.sampled.back().token = ScriptedToken(session.log, description_.vocabulary_size);
    }
    return result;
  }

  static Step Bare(const Step& step) {
    Step bare;
    bare.key = step.key;
    bare.seq = step.seq;
    bare.kind = step.kind;
    bare.start = step.start;
    bare.tokens = step.tokens;
    bare.rows = step.rows;
    bare.sampling = step.sampling;
    bare.ack = step.ack;
    return bare;
  }

  Reply<ReleaseOutcome> Release(const SessionKey& key) {
    std::lock_guard lock(mutex_);
    const auto found = sessions_.find(key.session);
    if (found == sessions_.end()) return ReleaseOutcome::kNotFound;
    if (found->second.epoch != key.epoch) return ReleaseOutcome::kEpochStale;
    calls_.push_back("release e" + std::to_string(key.epoch.value));
    sessions_.erase(found);
    return ReleaseOutcome::kReleased;
  }

  mutable std::mutex mutex_;  // guards everything below
  ShardDescription description_;
  std::map<SessionId, Session> sessions_;
  std::deque<Strike> strikes_;
  std::deque<OpenStrike> open_strikes_;
  std::vector<std::string> calls_;
  std::vector<Step> steps_;
  int cancels_ = 0;
};

}  // namespace meshnet
