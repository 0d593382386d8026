// Bytes as a list of commands to the hot KV of one shard: its answers are those of an independent model, every refusal changed nothing, the engine
// holds exactly what was committed, and no invariant breaks (tests/contract/kv_transcript.h watches all of it).
#include <algorithm>
#include <cstdio>
#include <string>

#include "base/check.h"
#include "kv_transcript.h"

namespace {

using meshnet::kv::KvTranscript;
using meshnet::kv::SessionLine;

class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), end_(data + size) {}
  bool empty() const { return data_ == end_; }
  uint64_t Below(uint64_t bound) { return empty() ? 0 : *data_++ % bound; }
  // `value`, or a neighbour of it.
  uint64_t Near(uint64_t value) {
    const uint64_t shift = Below(32);
    return shift > 2 ? value : shift == 0 ? value + 1 : shift == 1 ? value - std::min<uint64_t>(value, 1) : value + 2;
  }

 private:
  const uint8_t* data_;
  const uint8_t* end_;
};

std::string With(const char* key, uint64_t value) { return std::string(" ") + key + "=" + std::to_string(value); }

std::string Config(Bytes& bytes) {
  constexpr const char* kClasses[] = {"full", "window", "whole"};
  const uint64_t context = 4 + bytes.Below(13), sessions = 1 + bytes.Below(3), chunk = 1 + bytes.Below(6);
  std::string command = "config" + With("sessions", sessions) + With("context", context) + With("budget", context + bytes.Below(context * sessions));
  command += " ttl_ms=100" + With("window", 1 + bytes.Below(4)) + With("chunk", chunk) + With("pending", chunk + bytes.Below(6));
  command += With("tombstones", 1 + bytes.Below(4)) + " class=" + kClasses[bytes.Below(3)] + With("sliding", 1 + bytes.Below(4)) + With("slack", bytes.Below(4));
  return command;
}

std::string Step(Bytes& bytes, const SessionLine& session, uint64_t projected) {
  std::string command = "step " + session.name + With("epoch", bytes.Near(session.epoch.value)) + With("step", bytes.Near(session.last.value + session.queued + 1)) +
                        With("start", bytes.Near(projected)) + With("tokens", bytes.Near(1 + bytes.Below(4))) + With("ack", bytes.Near(session.last.value));
  switch (bytes.Below(40)) {
    case 0: return command + " digest=wrong";
    case 1: return command + " incarnation=other";
    case 2: return command + " token=-1";
    case 3: return command + " fields=non-finite";
    case 4: return command + " deadline_ms=10";
    case 5: case 6: case 7: case 8: case 9: case 10: return command + " kind=decode";
    default: return command;
  }
}

std::string Command(Bytes& bytes, const KvTranscript& transcript) {
  constexpr const char* kFates[] = {"ok", "ok", "ok", "rolled-back", "lost", "truncate-fails"};
  constexpr const char* kRest[] = {"expire", "advance 10", "advance 50", "advance 100", "dropped", "stats"};
  constexpr const char* kEnds[] = {"drain", "finish-drain", "poison"};
  const std::vector<SessionLine> sessions = transcript.Sessions();
  const uint64_t op = bytes.Below(16);
  if (sessions.empty() || op == 0) return "open s" + std::to_string(1 + bytes.Below(3)) + With("epoch", 1 + bytes.Below(4)) + With("reserve", bytes.Below(20));
  const SessionLine& session = sessions[bytes.Below(sessions.size())];
  const std::string next = With("epoch", session.epoch.value) + With("step", bytes.Near(session.last.value + 1));
  if (op < 5 && session.queued > 0 && session.queued < 3) return Step(bytes, session, transcript.ProjectedLen(session.name, session.epoch));
  if (op < 12 && session.queued > 0) return "settle " + session.name + " " + kFates[bytes.Below(6)] + next;
  if (op < 12) return Step(bytes, session, transcript.ProjectedLen(session.name, session.epoch));
  if (op == 12) return "start " + session.name + next;
  if (op == 13) return (bytes.Below(2) == 0 ? "release " : "cancel ") + session.name + With("epoch", bytes.Near(session.epoch.value));
  return bytes.Below(64) == 0 ? kEnds[bytes.Below(3)] : kRest[bytes.Below(6)];
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Bytes bytes(data, std::min<size_t>(size, 512));
  KvTranscript transcript;
  transcript.Execute(Config(bytes));
  while (!bytes.empty()) {
    const std::string command = Command(bytes, transcript);
    const std::string answer = transcript.Execute(command);
    if (!transcript.problem().empty()) std::fprintf(stderr, "%s -> %s\n%s\n", command.c_str(), answer.c_str(), transcript.problem().c_str());
    MESHNET_CHECK(transcript.problem().empty());
  }
  return 0;
}
