// Random command lists against the hot KV and its model: equal answers and states, invariants, unchanged state after each refusal, and the
// engine's content, after every command. MESHNET_KV_COMMANDS and MESHNET_KV_SEED choose a longer run or another one.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>

#include "kv_commands.h"

namespace meshnet::kv {
namespace {

constexpr size_t kListCommands = 100;

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

// What the child leaves behind for its parent even when it dies: the list it was at, and how often each kind of answer came.
struct Shared {
  uint64_t list = 0;
  uint64_t commands = 0;
  char answers[16384] = {};
};

uint64_t SeedOf(uint64_t seed, uint64_t list) { return seed * 1000003 + list; }

// "refused cache-miss past-mismatch past=3" -> "refused cache-miss past-mismatch".
std::string KindOf(const std::string& answer) {
  std::istringstream stream(answer);
  std::string kind;
  for (std::string word; stream >> word;) {
    if (const size_t equals = word.find('='); equals != std::string::npos) {
      // Which figures follow is news only where nothing else is said, or where they tell of others.
      if (kind.empty() || word.starts_with("superseded") || word.starts_with("dropped")) kind += "+" + word.substr(0, equals);
      continue;
    }
    kind += (kind.empty() ? "" : " ") + word;
  }
  return kind;
}

// Makes and runs the list; stops at the first problem.
std::vector<std::string> RunList(uint64_t seed, std::map<std::string, uint64_t>& answers, std::string& problem) {
  KvCommands commands(seed);
  KvTranscript transcript;
  std::vector<std::string> list = {commands.Config()};
  transcript.Execute(list[0]);
  while (list.size() < kListCommands && problem.empty()) {
    list.push_back(commands.Next(transcript));
    ++answers[KindOf(transcript.Execute(list.back()))];
    problem = transcript.problem();
  }
  return list;
}

// The list again, in a child that may die, whose commands come back through a pipe.
std::vector<std::string> Recover(uint64_t seed) {
  int ends[2];
  if (pipe(ends) != 0) return {};
  if (const pid_t child = fork(); child == 0) {
    close(ends[0]);
    fclose(stderr);
    KvCommands commands(seed);
    KvTranscript transcript;
    std::string command = commands.Config();
    for (size_t i = 0; i < kListCommands; ++i) {
      const std::string line = command + "\n";
      if (write(ends[1], line.data(), line.size()) < 0) _exit(1);
      transcript.Execute(command);
      command = commands.Next(transcript);
    }
    _exit(0);
  } else {
    close(ends[1]);
    std::string text;
    char buffer[4096];
    for (ssize_t count; (count = read(ends[0], buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<size_t>(count));
    close(ends[0]);
    waitpid(child, nullptr, 0);
    std::vector<std::string> list;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) list.push_back(line);
    return list;
  }
}

// Runs all lists in a child, since a broken invariant aborts. True when every list was good.
bool RunAll(uint64_t seed, uint64_t commands, Shared& shared) {
  const pid_t child = fork();
  if (child == 0) {
    std::map<std::string, uint64_t> answers;
    for (shared.list = 0; shared.commands < commands; ++shared.list) {
      std::string problem;
      shared.commands += RunList(SeedOf(seed, shared.list), answers, problem).size();
      if (!problem.empty()) _exit(1);
    }
    std::string text;
    for (const auto& [answer, count] : answers) text += answer + "|" + std::to_string(count) + "\n";
    std::strncpy(shared.answers, text.c_str(), sizeof shared.answers - 1);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(KvTwinTest, AgreesWithTheModelUnderRandomCommands) {
  const uint64_t seed = FromEnvironment("MESHNET_KV_SEED", 1);
  const uint64_t commands = FromEnvironment("MESHNET_KV_COMMANDS", 200000);
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  Shared& shared = *new (memory) Shared();
  if (!RunAll(seed, commands, shared)) {
    const std::vector<std::string> shortest = Shrink(Recover(SeedOf(seed, shared.list)));
    FAIL() << "seed " << seed << ", list " << shared.list << " failed: " << RunCommands(shortest).problem
           << "\nThe shortest failing list, ready for tests/golden/kv:\n" << StoryOf(shortest);
  }
  std::cout << shared.commands << " commands in " << shared.list << " lists, seed " << seed << "\n" << shared.answers;
  // A generator that never reaches an answer would prove nothing about it.
  const std::string answers = std::string("\n") + shared.answers;
  auto never = [&](const std::string& start) { return answers.find("\n" + start) == std::string::npos; };
  for (const char* answer : {"accepted|", "accepted+superseded|", "joined|", "replayed|", "+past|", "executing|", "executing truncate|"}) {
    EXPECT_FALSE(never(answer)) << answer;
  }
  for (const char* refusal :
       {"cache-miss no-session", "cache-miss evicted-lru", "cache-miss evicted-ttl", "cache-miss past-mismatch", "cache-miss digest-mismatch",
        "cache-miss incarnation", "cache-miss lost", "cache-miss drained", "epoch-stale", "capacity sessions", "capacity tokens", "context-exceeded", "step-conflict",
        "step-gap", "step-reply-gone", "credit-exceeded", "truncate-unsupported", "bad-request limit", "bad-request token",
        "bad-request non-finite", "bad-request shape", "exec-failed", "deadline-exceeded", "draining", "poisoned"}) {
    EXPECT_FALSE(never(std::string("refused ") + refusal)) << refusal;
  }
  for (const char* outcome : {"removed", "released", "not-found, nothing changed", "epoch-stale, nothing changed", "deferred"}) {
    EXPECT_FALSE(never(outcome)) << outcome;
  }
  munmap(memory, sizeof(Shared));
}

TEST(KvTwinTest, AFailingListIsShrunkToWhatItNeeds) {
  std::vector<std::string> list = {"config sessions=2", "advance 5", "open s1 epoch=1 reserve=4", "open s2 epoch=1 reserve=4", "stats",
                                   "release s1 epoch=1", "advance 1", "canary", "stats", "expire"};
  const std::vector<std::string> shortest = Shrink(list);
  EXPECT_EQ(shortest, (std::vector<std::string>{"open s2", "canary"}));
  EXPECT_NE(RunCommands(shortest).problem.find("the canary found a session"), std::string::npos);
}

}  // namespace
}  // namespace meshnet::kv
