// Random command lists for the hot KV, biased to boundaries, and what to do with one that fails.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "kv_transcript.h"

namespace meshnet::kv {

// Makes one list, a command at a time, looking at what the transcript holds. Equal seeds give equal lists.
class KvCommands {
 public:
  explicit KvCommands(uint64_t seed) : random_(seed) {}

  // The first command: a small configuration, so that every bound is near.
  std::string Config();
  std::string Next(const KvTranscript& transcript);

 private:
  uint64_t Below(uint64_t bound) { return std::uniform_int_distribution<uint64_t>(0, bound - 1)(random_); }
  bool Chance(uint32_t percent) { return Below(100) < percent; }
  // A number near `value`, mostly itself.
  uint64_t Near(uint64_t value);
  std::string Name() { return "s" + std::to_string(1 + Below(4)); }

  std::string Open(const std::string& name, uint64_t epoch, const KvTranscript& transcript);
  std::string Step(const SessionLine& session, const KvTranscript& transcript);
  std::string StepOptions(const SessionLine& session);
  std::string Work(const SessionLine& session);
  std::string Rest();

  std::mt19937_64 random_;
  std::vector<std::string> steps_;  // said before, to be said again
};

// What a list leads to when it is run in a process of its own, because a broken invariant aborts.
struct Ran {
  std::vector<std::string> answers;  // up to the one that went wrong
  std::string problem;               // empty when all was well
};
Ran RunCommands(const std::vector<std::string>& commands);
// The shortest list found that still fails: a prefix, then without the commands, then without the words that it does not need.
std::vector<std::string> Shrink(std::vector<std::string> commands);
// The list with its answers, as a file of tests/golden/kv.
std::string StoryOf(const std::vector<std::string>& commands);

}  // namespace meshnet::kv
