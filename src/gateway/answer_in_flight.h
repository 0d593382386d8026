// One request's answer while it is made: its choices, each on a session and a thread of its own, put events in; the client's connection takes
// them out. Between the two is a bounded buffer, so a client that reads slowly holds neither an engine nor, for long, a session.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "gateway/growing_threads.h"
#include "gateway/metrics.h"
#include "gateway/replies.h"
#include "session/session_pool.h"
#include "text/text_model.h"

namespace meshnet::gateway {

struct AnswerLimits {
  Duration head_wait = std::chrono::seconds(1);         // a stream's head waits this long for the first token, so that an early error has a status
  Duration ping_interval = std::chrono::seconds(15);    // a silent stream gets a comment
  Duration probe_interval = std::chrono::seconds(2);    // the same, while only writing tells whether the client is there
  Duration queue_limit = std::chrono::minutes(10);      // waiting for a session
  Duration blocked_limit = std::chrono::seconds(30);    // a full buffer ends the answer
  size_t buffer_bytes_max = 4u << 20;
};

// What the choices of all answers share. Everything outlives every answer.
struct AnswerEnvironment {
  SessionPool* pool = nullptr;
  GrowingThreads* threads = nullptr;
  Metrics* metrics = nullptr;
  const Clock* clock = nullptr;
  AnswerLimits limits;
};

class AnswerInFlight {
 public:
  // Starts all choices, or none when they do not all fit in line. Shared by the connection and the choices' threads: either side may be the last to leave.
  static std::shared_ptr<AnswerInFlight> Start(std::unique_ptr<ParsedRequest> request, std::string owner, const AnswerEnvironment& environment);
  ~AnswerInFlight();

  // ---- The connection's side.

  // Readable whenever there may be something new.
  int wake_fd() const { return wake_fd_; }
  // The stream's bytes so far; makes wake_fd silent.
  std::string Take();
  // Nothing more comes: all choices have ended, one has failed, or the client took nothing for too long (`abandoned`). Asked before Take, it
  // misses nothing.
  bool finished() const;
  bool abandoned() const { return abandoned_; }
  bool has_output() const;
  std::optional<AnswerError> failure() const;
  // Of a finished answer without failure: the whole body, or a stream's closing bytes.
  std::string Body() const;
  std::string StreamEnd() const;
  // The client is gone: all choices stop within a step.
  void Abandon();

  struct Summary {
    Usage usage;
    uint32_t replays = 0;
    double first_token_seconds = -1;  // before the first: -1
  };
  Summary summary() const;
  const ParsedRequest& request() const { return *request_; }

 private:
  class Sink;
  struct ChoiceState {
    std::unique_ptr<AnswerWriter> writer;
    std::optional<SessionPool::Place> place;  // until its thread waits for a session with it
    bool begun = false;   // its first chunk was sent
    bool ended = false;
    nlohmann::ordered_json body;
    AnswerReport report;  // until the end only the tokens generated so far
  };

  AnswerInFlight(std::unique_ptr<ParsedRequest> request, std::string owner, const AnswerEnvironment& environment, int wake_fd);
  void Run(size_t choice);
  void Answer(size_t choice);
  void End(size_t choice, const AnswerReport& report);
  void Fail(AnswerError error);
  void Count(const AnswerReport& report);
  void FirstToken(Time now);
  void CountToken(size_t choice);
  // False: nobody takes it any more.
  bool Push(size_t choice, std::vector<nlohmann::ordered_json> events);
  // After `abandoned_` was set: the choices see it in whatever they wait for.
  void WakeChoices();
  void Ring();
  Usage TotalUsage() const;

  const std::unique_ptr<ParsedRequest> request_;
  const std::string owner_;
  const AnswerEnvironment environment_;
  const int wake_fd_;
  const Time start_;
  std::atomic<bool> abandoned_ = false;

  mutable std::mutex mutex_;  // guards what follows; each choice's writer belongs to its thread
  std::condition_variable room_;
  std::string buffer_;
  std::vector<ChoiceState> choices_;
  size_t running_ = 0;
  std::optional<AnswerError> failure_;
  double first_token_seconds_ = -1;
};

}  // namespace meshnet::gateway
