#include "cli/bench_target.h"

#include <atomic>
#include <thread>

#include "cli/test_prompts.h"
#include "engine/llama/plain_context.h"
#include "session/session_driver.h"

namespace meshnet::cli {
namespace {

constexpr Duration kReleaseTimeout = std::chrono::seconds(5);

double Seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

// Prompts differ between sessions and bursts, so that nothing is reused.
std::vector<Token> PromptOf(const BurstShape& shape, uint32_t session, uint32_t vocabulary_size) {
  return TestTokens(shape.prompt_tokens, shape.number * 1000 + session, vocabulary_size);
}

class TimingSink : public AnswerSink {
 public:
  TimingSink(const Clock& clock, Time start) : clock_(clock), start_(start) {}
  SinkVerdict OnToken(const SampledToken&) override {
    times_.push_back(Seconds(clock_.Now() - start_));
    return SinkVerdict::kGoOn;
  }
  const std::vector<double>& times() const { return times_; }

 private:
  const Clock& clock_;
  Time start_;
  std::vector<double> times_;
};

class RouteTarget : public BenchTarget {
 public:
  RouteTarget(std::string name, Route& route, const Clock& clock, uint32_t vocabulary_size)
      : name_(std::move(name)), route_(route), clock_(clock), vocabulary_size_(vocabulary_size) {}

  const std::string& name() const override { return name_; }

  Result<BurstTimes> Burst(const BurstShape& shape) override {
    return BurstOfThreads(name_, shape, clock_, [&](uint32_t session, Time start, std::vector<double>* times) {
      return AnswerOne(shape, session, start, times);
    });
  }

 private:
  // What went wrong; empty when nothing did.
  std::string AnswerOne(const BurstShape& shape, uint32_t session, Time start, std::vector<double>* times) {
    DrivenSession driven(route_, clock_, DriverOptions(), "bench");
    AnswerRequest request;
    request.prompt = PromptOf(shape, session, vocabulary_size_);
    request.sampling.temperature = 0;
    request.sampling.ignore_eos = true;
    request.tokens_max = shape.generated_tokens;
    TimingSink sink(clock_, start);
    std::variant<AnswerReport, AnswerFailure> outcome = driven.Answer(request, sink);
    driven.Release(kReleaseTimeout);
    if (const AnswerFailure* failure = std::get_if<AnswerFailure>(&outcome)) return failure->message;
    *times = sink.times();
    if (times->size() == shape.generated_tokens) return "";
    return "an answer has " + std::to_string(times->size()) + " tokens instead of " + std::to_string(shape.generated_tokens);
  }

  std::string name_;
  Route& route_;
  const Clock& clock_;
  uint32_t vocabulary_size_;
};

class PlainTarget : public BenchTarget {
 public:
  PlainTarget(std::string name, std::unique_ptr<PlainContext> context, const Clock& clock)
      : name_(std::move(name)), context_(std::move(context)), clock_(clock) {}

  const std::string& name() const override { return name_; }

  Result<BurstTimes> Burst(const BurstShape& shape) override {
    context_->Reset();
    Time start = clock_.Now();
    std::vector<std::vector<double>> times(shape.sessions);
    std::vector<Token> tokens;
    for (uint32_t i = 0; i < shape.sessions; ++i) {
      Result<Token> first = context_->Prefill(SequenceId(static_cast<int32_t>(i)), PromptOf(shape, i, context_->vocabulary_size()));
      if (!first.ok()) return first.status();
      tokens.push_back(*first);
      times[i].push_back(Seconds(clock_.Now() - start));
    }
    for (uint32_t step = 1; step < shape.generated_tokens; ++step) {
      Result<std::vector<Token>> next = context_->Decode(tokens);
      if (!next.ok()) return next.status();
      tokens = std::move(*next);
      for (std::vector<double>& session : times) session.push_back(Seconds(clock_.Now() - start));
    }
    BurstTimes burst;
    for (const std::vector<double>& session : times) AddSession(session, &burst);
    return burst;
  }

 private:
  std::string name_;
  std::unique_ptr<PlainContext> context_;
  const Clock& clock_;
};

}  // namespace

Result<BurstTimes> BurstOfThreads(const std::string& name, const BurstShape& shape, const Clock& clock, const SessionOfBurst& session) {
  std::vector<std::vector<double>> times(shape.sessions);
  std::vector<std::string> troubles(shape.sessions);
  const Time start = clock.Now();
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < shape.sessions; ++i) {
    threads.emplace_back([&, i] { troubles[i] = session(i, start, &times[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  BurstTimes burst;
  for (uint32_t i = 0; i < shape.sessions; ++i) {
    if (!troubles[i].empty()) return Failure(name + ": " + troubles[i]);
    AddSession(times[i], &burst);
  }
  return burst;
}

std::unique_ptr<BenchTarget> CreateRouteTarget(const std::string& name, Route& route, const Clock& clock, uint32_t vocabulary_size) {
  return std::make_unique<RouteTarget>(name, route, clock, vocabulary_size);
}

Result<std::unique_ptr<BenchTarget>> CreatePlainTarget(const std::string& name, const std::string& model_path, const EngineOptions& options,
                                                       const Clock& clock) {
  Result<std::unique_ptr<PlainContext>> context = CreatePlainContext(model_path, options);
  if (!context.ok()) return context.status();
  return std::unique_ptr<BenchTarget>(std::make_unique<PlainTarget>(name, std::move(*context), clock));
}

}  // namespace meshnet::cli
