#include "differential/operations.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <random>

namespace meshnet::differential {
namespace {

constexpr std::array kNames = {"open", "step", "decodes", "resend", "run", "cancel", "release", "advance"};
constexpr int kTriesMax = 600;

class Generator {
 public:
  Generator(uint64_t seed, const OperationScope& scope) : random_(seed), scope_(scope) {}

  Operation Next() {
    Operation one;
    one.client = Below(scope_.clients);
    const uint32_t dice = Below(100);
    if (dice < 30) {
      one.kind = Operation::Kind::kRun;
      one.count = 1 + Below(4);
      if (Chance(12)) one.break_at = 1 + Below(120);
    } else if (dice < 62) {
      MakeStep(one);
    } else if (dice < 80) {
      one.kind = Operation::Kind::kDecodes;
      one.content = Below(1 << 16);
      if (Chance(4)) one.poison = true;
    } else if (dice < 87) {
      MakeOpen(one);
    } else if (dice < 91) {
      one.kind = Operation::Kind::kResend;
      one.conflict = Chance(25);
    } else if (dice < 93) {
      one.kind = Operation::Kind::kCancel;
    } else if (dice < 96) {
      one.kind = Operation::Kind::kRelease;
      one.epoch = Stale(15);
    } else {
      one.kind = Operation::Kind::kAdvance;
      constexpr std::array kTimes = {1u, 10u, 300u, 999u, 1000u};
      one.count = kTimes[Below(kTimes.size())];
    }
    return one;
  }

 private:
  uint32_t Below(size_t bound) { return static_cast<uint32_t>(std::uniform_int_distribution<size_t>(0, bound - 1)(random_)); }
  bool Chance(uint32_t percent) { return Below(100) < percent; }
  int32_t Stale(uint32_t percent) { return Chance(percent) ? (Chance(50) ? 1 : -1) : 0; }

  void MakeOpen(Operation& one) {
    one.kind = Operation::Kind::kOpen;
    one.epoch = Stale(50);
    const std::array reserves = {0u, 1u, scope_.context_tokens, scope_.context_tokens + 1, scope_.context_tokens / 2, 1 + Below(scope_.context_tokens)};
    one.count = reserves[Below(reserves.size())];
  }

  void MakeStep(Operation& one) {
    one.kind = Operation::Kind::kStep;
    one.content = Below(1 << 16);
    one.decode = Chance(15);
    one.count = one.decode ? 1 : Chance(10) ? scope_.chunk_rows_max + Below(2) : 1 + Below(scope_.chunk_rows_max);
    // Often to the beginning and to places near the end, where a window may still be whole.
    if (!one.decode && Chance(30)) one.back = Chance(25) ? 1u << 20 : 1 + Below(Chance(50) ? 8 : scope_.context_tokens);
    one.rows = Below(8) == 0 ? 0 : 1 + Below(2);
    one.sample = one.rows == 1 && Chance(25);
    one.acknowledge = Chance(85);
    if (Chance(80)) return;
    switch (Below(9)) {
      case 0: one.ahead = 1; break;
      case 1: one.seq = 1; break;
      case 2: one.seq = -1; break;
      case 3: one.epoch = Chance(50) ? 1 : -1; break;
      case 4: one.wrong_digest = true; break;
      case 5: one.other_incarnation = true; break;
      case 6: one.bad_token = true; break;
      case 7: one.short_deadline = true; break;
      default: one.poison = true; break;
    }
  }

  std::mt19937_64 random_;
  OperationScope scope_;
};

}  // namespace

std::vector<Operation> RandomOperations(uint64_t seed, size_t count, const OperationScope& scope) {
  Generator generator(seed, scope);
  std::vector<Operation> operations;
  for (size_t i = 0; i < count; ++i) operations.push_back(generator.Next());
  return operations;
}

std::string TextOf(const std::vector<Operation>& operations) {
  std::string text;
  for (const Operation& one : operations) {
    text += std::string("  ") + kNames[static_cast<size_t>(one.kind)];
    const auto add = [&](const char* key, int64_t value, int64_t usual) {
      if (value != usual) text += std::string(" ") + key + "=" + std::to_string(value);
    };
    add("client", one.client, -1);
    add("epoch", one.epoch, 0);
    add("count", one.count, -1);
    if (one.kind == Operation::Kind::kStep) {
      add("decode", one.decode, 0);
      add("back", one.back, 0);
      add("ahead", one.ahead, 0);
      add("seq", one.seq, 0);
      add("rows", one.rows, -1);
      add("ack", one.acknowledge, 1);
      add("sample", one.sample, 0);
      add("wrong_digest", one.wrong_digest, 0);
      add("other_incarnation", one.other_incarnation, 0);
      add("bad_token", one.bad_token, 0);
      add("short_deadline", one.short_deadline, 0);
    }
    add("content", one.content, 0);
    add("poison", one.poison, 0);
    add("conflict", one.conflict, 0);
    add("break_at", one.break_at, 0);
    text += "\n";
  }
  return text;
}

std::vector<Operation> Shrink(std::vector<Operation> operations, const std::function<bool(const std::vector<Operation>&)>& fails) {
  int tries = kTriesMax;
  const auto still = [&](const std::vector<Operation>& fewer) { return tries-- > 0 && fails(fewer); };
  // Nothing after the operation that failed is needed.
  size_t good = 0, bad = operations.size();
  while (bad - good > 1) {
    const size_t middle = (good + bad) / 2;
    (still({operations.begin(), operations.begin() + static_cast<std::ptrdiff_t>(middle)}) ? bad : good) = middle;
  }
  operations.resize(bad);
  bool shorter = true;
  for (size_t part = std::max<size_t>(operations.size() / 2, 1); part > 1 || shorter; part = std::max<size_t>(part / 2, 1)) {
    shorter = false;
    for (size_t at = 0; at < operations.size();) {
      std::vector<Operation> fewer = operations;
      const auto first = fewer.begin() + static_cast<std::ptrdiff_t>(at);
      fewer.erase(first, first + static_cast<std::ptrdiff_t>(std::min(part, fewer.size() - at)));
      if (!fewer.empty() && still(fewer)) {
        operations = std::move(fewer);
        shorter = true;
      } else {
        at += part;
      }
    }
    if (tries <= 0) break;
  }
  return operations;
}

}  // namespace meshnet::differential
