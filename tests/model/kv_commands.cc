#include "kv_commands.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>

#include "run_in_child.h"

namespace meshnet::kv {
namespace {

const std::string kAnswerMark = "-> ";

std::string With(const char* key, uint64_t value) { return std::string(" ") + key + "=" + std::to_string(value); }

}  // namespace

uint64_t KvCommands::Near(uint64_t value) {
  switch (Below(10)) {
    case 0: return value + 1;
    case 1: return value > 0 ? value - 1 : 0;
    case 2: return value > 1 ? value - 2 : value + 2;
    default: return value;
  }
}

std::string KvCommands::Config() {
  const uint64_t context = 4 + Below(13);
  const uint64_t sessions = 1 + Below(3);
  static constexpr std::array kClasses = {"full", "window", "whole"};
  const uint64_t chunk = 1 + Below(6);
  return "config" + With("sessions", sessions) + With("context", context) + With("budget", context + Below(context * sessions)) +
         With("ttl_ms", 100) + With("window", 1 + Below(4)) + With("chunk", chunk) + With("pending", chunk + Below(6)) +
         With("tombstones", 1 + Below(4)) + " class=" + kClasses[Below(kClasses.size())] + With("sliding", 1 + Below(4)) + With("slack", Below(4)) +
         (Chance(30) ? " confirm=late" : "");
}

std::string KvCommands::Next(const KvTranscript& transcript) {
  const std::vector<SessionLine> sessions = transcript.Sessions();
  std::vector<SessionLine> live;
  for (const SessionLine& line : sessions) {
    if (!line.closing) live.push_back(line);
  }
  if (const std::vector<SequenceId>& waiting = transcript.unconfirmed(); !waiting.empty() && Chance(25)) {
    return Chance(50) ? "confirm" : "confirm" + With("seq", static_cast<uint64_t>(waiting[Below(waiting.size())].value));
  }
  // Also to a session that ended, whose owner hears why.
  if (!steps_.empty() && Chance(live.empty() ? 30 : 8)) return steps_[Below(steps_.size())];
  if (live.empty() || Chance(12)) {
    const std::string name = Name();
    uint64_t epoch = 1 + Below(2);
    for (const SessionLine& line : sessions) {
      if (line.name == name) epoch = Near(line.epoch.value + (Chance(30) ? 1 : 0));
    }
    return Chance(6) ? "release " + name + With("epoch", epoch) : Open(name, epoch, transcript);
  }
  // What ran when its session ended still has to be settled, sooner or later.
  const SessionLine session = Chance(85) ? live[Below(live.size())] : sessions[Below(sessions.size())];
  if (session.closing || (session.queued > 0 && Chance(45))) return Work(session);
  if (Chance(70)) {
    const std::string step = Step(session, transcript);
    steps_.push_back(step);
    if (steps_.size() > 4) steps_.erase(steps_.begin());
    return step;
  }
  if (Chance(20)) return "release " + session.name + With("epoch", Near(session.epoch.value));
  if (Chance(25)) return "cancel " + session.name + With("epoch", Near(session.epoch.value));
  return Rest();
}

std::string KvCommands::Open(const std::string& name, uint64_t epoch, const KvTranscript& transcript) {
  const HotKvConfig& config = transcript.config();
  uint64_t free = config.budget_tokens;
  for (const SessionLine& line : transcript.Sessions()) free -= std::min<uint64_t>(free, line.reserved);
  const std::array<uint64_t, 5> reserves = {0, 1, Near(config.context_tokens), Near(free), 1 + Below(config.context_tokens)};
  std::string command = "open " + name + With("epoch", epoch) + With("reserve", reserves[Below(reserves.size())]);
  if (Chance(10)) command += " salt=x";
  return command;
}

std::string KvCommands::Step(const SessionLine& session, const KvTranscript& transcript) {
  const HotKvConfig& config = transcript.config();
  const uint64_t projected = transcript.ProjectedLen(session.name, session.epoch);
  const bool decode = Chance(35);
  const uint64_t start = !decode && Chance(25) ? Below(projected + 1) : Near(projected);
  uint64_t tokens = decode ? (Chance(95) ? 1 : Below(3)) : 1 + Below(config.chunk_rows_max);
  if (!decode && Chance(15)) tokens = Near(session.reserved > start ? session.reserved - start : 1);
  if (!decode && Chance(5)) tokens = Near(config.chunk_rows_max);
  return "step " + session.name + With("epoch", Chance(90) ? session.epoch.value : Near(session.epoch.value)) +
         With("step", Near(session.last.value + session.queued + 1)) + With("start", start) + With("tokens", tokens) +
         (decode ? " kind=decode" : "") + StepOptions(session);
}

std::string KvCommands::StepOptions(const SessionLine& session) {
  std::string options;
  if (Chance(80)) options += With("ack", Chance(70) ? session.last.value : Near(session.acked.value));
  if (Chance(20)) options += With("content", Below(3));
  if (Chance(5)) options += With("frame", Below(2));
  if (Chance(4)) options += " digest=wrong";
  if (Chance(3)) options += " incarnation=other";
  if (Chance(3)) options += Chance(50) ? " token=1000" : " token=-1";
  if (Chance(3)) options += Chance(50) ? " fields=non-finite" : " fields=shape";
  if (Chance(8)) options += With("deadline_ms", Below(3) * 10);
  return options;
}

std::string KvCommands::Work(const SessionLine& session) {
  // Mostly the next in line.
  const std::string which = " " + session.name + With("epoch", session.epoch.value) + With("step", session.last.value + (Chance(90) ? 1 : 2));
  if (!session.closing && Chance(30)) return "start" + which;
  const uint64_t fate = Below(100);
  const char* name = fate < 75 ? " ok" : fate < 90 ? " rolled-back" : fate < 95 ? " lost" : " truncate-fails";
  const std::string words = " " + session.name + name;
  return "settle" + words + which.substr(1 + session.name.size());
}

std::string KvCommands::Rest() {
  switch (Below(12)) {
    case 0: return "expire";
    case 1: return "advance 1";
    case 2: return "advance 99";
    case 3: return "advance 100";
    case 4: return Chance(10) ? "advance 600000" : "advance 50";
    case 5: return Chance(8) ? "drain" : "dropped";
    case 6: return Chance(8) ? "finish-drain" : "dropped";
    case 7: return Chance(8) ? "poison" : "stats";
    default: return "advance 10";
  }
}

Ran RunCommands(const std::vector<std::string>& commands) {
  // Answers, then what is wrong: the words of a broken claim come out of it by themselves.
  ChildRun child = RunInChild([&](const Say& say) {
    KvTranscript transcript;
    for (const std::string& command : commands) {
      say(kAnswerMark + transcript.Execute(command) + "\n");
      if (transcript.problem().empty()) continue;
      say(transcript.problem());
      return 1;
    }
    return 0;
  });
  Ran ran;
  while (child.output.starts_with(kAnswerMark)) {
    const size_t end = child.output.find('\n');
    ran.answers.push_back(child.output.substr(kAnswerMark.size(), end - kAnswerMark.size()));
    child.output.erase(0, end + 1);
  }
  if (!child.well) ran.problem = ProblemOf(child);
  return ran;
}

std::string StoryOf(const std::vector<std::string>& commands) {
  const Ran ran = RunCommands(commands);
  size_t width = 0;
  for (const std::string& command : commands) width = std::max(width, command.size());
  std::string story = "# " + ran.problem.substr(0, ran.problem.find('\n')) + "\n";
  for (size_t i = 0; i < commands.size(); ++i) {
    const bool answered = i < ran.answers.size();
    story += commands[i] + std::string(width - commands[i].size(), ' ') + " -> " + (answered ? ran.answers[i] : "(none)") + "\n";
  }
  return story;
}

namespace {

bool Fails(const std::vector<std::string>& commands) { return !RunCommands(commands).problem.empty(); }

// The shortest prefix that fails; failing is monotonic in the prefix, as a problem stays.
void CutTail(std::vector<std::string>& commands) {
  size_t good = 0, bad = commands.size();
  while (bad - good > 1) {
    const size_t middle = (good + bad) / 2;
    const std::vector<std::string> prefix(commands.begin(), commands.begin() + static_cast<ptrdiff_t>(middle));
    (Fails(prefix) ? bad : good) = middle;
  }
  commands.resize(bad);
}

// Tries to do without runs of `part` commands; never without the last. True when it could.
bool CutRuns(std::vector<std::string>& commands, size_t part) {
  bool shorter = false;
  for (size_t at = 0; at + 1 < commands.size();) {
    std::vector<std::string> fewer = commands;
    const auto first = fewer.begin() + static_cast<ptrdiff_t>(at);
    fewer.erase(first, first + static_cast<ptrdiff_t>(std::min(part, fewer.size() - 1 - at)));
    if (Fails(fewer)) {
      commands = std::move(fewer);
      shorter = true;
    } else {
      at += part;
    }
  }
  return shorter;
}

// Tries to do without each option of each command.
bool CutOptions(std::vector<std::string>& commands) {
  bool shorter = false;
  for (size_t i = 0; i < commands.size(); ++i) {
    for (size_t at = commands[i].rfind(' '); at != std::string::npos && at > 0; at = commands[i].rfind(' ', at - 1)) {
      const size_t end = commands[i].find(' ', at + 1);
      if (commands[i].find('=', at) >= end) continue;
      std::vector<std::string> fewer = commands;
      fewer[i].erase(at, end == std::string::npos ? end : end - at);
      if (!Fails(fewer)) continue;
      commands = std::move(fewer);
      shorter = true;
    }
  }
  return shorter;
}

// The figure of an option, and the command with another one.
std::optional<uint64_t> Figure(const std::string& command, const std::string& key) {
  const size_t at = command.find(" " + key + "=");
  if (at == std::string::npos) return std::nullopt;
  return std::strtoull(command.c_str() + at + key.size() + 2, nullptr, 10);
}

void Lower(std::string& command, const std::string& key, uint64_t by) {
  const std::optional<uint64_t> figure = Figure(command, key);
  if (!figure) return;
  const size_t at = command.find(" " + key + "=") + key.size() + 2;
  command.replace(at, std::min(command.find(' ', at), command.size()) - at, std::to_string(*figure - std::min(*figure, by)));
}

// Tries to do without each step of a session: what follows it moves up by one number and by its tokens.
bool CutSteps(std::vector<std::string>& commands) {
  bool shorter = false;
  for (size_t i = 0; i < commands.size();) {
    const std::string cut = commands[i];
    const std::optional<uint64_t> seq = Figure(cut, "step");
    const std::string name = cut.starts_with("step ") ? cut.substr(5, cut.find(' ', 5) - 5) : "";
    std::vector<std::string> fewer;
    for (size_t j = 0; j < commands.size(); ++j) {
      std::string command = commands[j];
      const bool same = command.find(" " + name) == command.find(' ');
      const std::optional<uint64_t> other = same ? Figure(command, "step") : std::nullopt;
      if (j == i || (other && other == seq && !command.starts_with("step "))) continue;
      if (other && other > seq) Lower(command, "step", 1), Lower(command, "ack", 1), Lower(command, "start", Figure(cut, "tokens").value_or(0));
      fewer.push_back(command);
    }
    if (!name.empty() && seq && !fewer.empty() && Fails(fewer)) {
      commands = std::move(fewer);
      shorter = true;
    } else {
      ++i;
    }
  }
  return shorter;
}

}  // namespace

std::vector<std::string> Shrink(std::vector<std::string> commands) {
  CutTail(commands);
  for (size_t part = std::max<size_t>(commands.size() / 2, 1); part > 1; part /= 2) CutRuns(commands, part);
  while (CutSteps(commands) || CutRuns(commands, 1) || CutOptions(commands)) CutTail(commands);
  return commands;
}

}  // namespace meshnet::kv
