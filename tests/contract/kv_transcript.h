// Executes lines of the hot KV's transcript language (docs/kv-contract.md) against a real HotKv over a fake engine, and answers each with one
// line. Beside the answer it watches what must hold after every command: the invariants, byte-equal state after a refusal, equality with the
// model twin, an engine that holds exactly the committed tokens, and sampled tokens that an undisturbed session would give.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/fake_engine.h"
#include "kv/hot_kv.h"
#include "twinned_kv.h"

namespace meshnet::kv {

// One live or closing session.
struct SessionLine {
  std::string name;
  SessionKey key;
  Epoch epoch;
  SequenceId sequence;
  uint32_t reserved = 0;
  PastLen past;
  StepSeq last;
  StepSeq acked;
  uint32_t queued = 0;
  bool executing = false;
  bool closing = false;
};

class KvTranscript {
 public:
  KvTranscript();
  ~KvTranscript();

  // One command without comment or "->"; its answer. An unknown command answers "what? ...".
  std::string Execute(const std::string& command);
  // What went wrong beside the answers; empty when nothing did.
  const std::string& problem() const { return problem_; }

  // For the generator of random commands.
  const HotKvConfig& config() const { return config_; }
  std::vector<SessionLine> Sessions() const;
  // Committed and queued tokens, told from the answers alone.
  uint32_t ProjectedLen(const std::string& name, Epoch epoch) const { return static_cast<uint32_t>(Line(name, epoch).size()); }
  TwinnedKv& kv() { return *kv_; }
  const FakeEngine& engine() const { return *engine_; }
  const std::vector<SequenceId>& unconfirmed() const { return unconfirmed_; }

 private:
  struct Words;
  class Probe;
  struct Pending {  // a step that was admitted and is neither settled nor dropped
    Ticket ticket;
    std::string name;
    PastLen start;
    std::vector<Token> tokens;
    std::optional<Execution> execution;
    bool orphan = false;  // its session was opened anew since
  };
  // What the session must hold, told from the answers alone.
  struct Mirror {
    Epoch epoch;
    std::string salt;
    std::vector<Token> committed;
  };

  std::string Answer(const Words& words);
  std::string Configure(const Words& words);
  std::string Open(const Words& words);
  std::string DoStep(const Words& words);
  std::string Start(const Words& words);
  std::string Settle(const Words& words);
  std::string Release(const Words& words);
  std::string Cancel(const Words& words);
  std::string Show(const Words& words);

  Step MakeStep(const Words& words) const;
  std::vector<Token> Line(const std::string& name, Epoch epoch) const;
  Pending* FindPending(const Words& words, bool started);
  bool startable(const Pending& pending) const;
  std::string Begin(Pending& pending);
  StepFate RunEngine(Pending& pending, const std::string& fate, StepResult& result, std::string& cause);
  void Committed(const Pending& pending, const StepResult& result);
  std::string Text(const Refusal& refusal);
  std::string Text(const std::vector<Dropped>& dropped);
  std::string Perform(const Effects& effects);
  std::string Confirm(std::optional<SequenceId> only);
  void Forget(const Ticket& ticket);
  void Watch();
  void Problem(const std::string& problem);

  HotKvConfig config_;
  FakeEngineOptions engine_options_;
  std::unique_ptr<FakeEngine> engine_;
  std::unique_ptr<Probe> probe_;
  std::unique_ptr<TwinnedKv> kv_;
  Time now_{std::chrono::hours(1)};
  std::vector<Pending> pending_;
  std::map<std::string, Mirror> mirrors_;
  bool late_ = false;                     // removals wait for a command
  std::vector<SequenceId> unconfirmed_;
  std::string command_;
  std::string problem_;
};

// The answers of a whole transcript's commands; `lines` may hold comments, blank lines and expected answers, which are kept or replaced.
// Returns the lines with the real answers; `problem` gets the first problem, with its line number.
std::vector<std::string> RewriteTranscript(const std::vector<std::string>& lines, std::string& problem);
// A line's command: without comment, expected answer and trailing blanks. Empty when it has none.
std::string CommandOf(const std::string& line);

}  // namespace meshnet::kv
