// What does the hot KV itself cost? Nanoseconds a decision at 1, 16 and 256 sessions, bytes a session, the prefix digest a token, and allocations
// on the decode path once warm (OpenSSL's counted too). CSV on stdout. `--allocations` only counts those and fails when there is one.
#include <malloc.h>
#include <openssl/crypto.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "kv/hot_kv.h"
#include "protocol/prefix_digest.h"

namespace {

uint64_t allocation_count = 0;
int64_t bytes_live = 0;

void* Allocate(size_t size) {
  void* memory = std::malloc(size);
  ++allocation_count;
  bytes_live += static_cast<int64_t>(malloc_usable_size(memory));
  return memory;
}

void Free(void* memory) {
  bytes_live -= static_cast<int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

void* OpenSslAllocate(size_t size, const char*, int) { return Allocate(size); }
void* OpenSslReallocate(void* memory, size_t size, const char*, int) {
  ++allocation_count;
  return std::realloc(memory, size);
}
void OpenSslFree(void* memory, const char*, int) { Free(memory); }

}  // namespace

void* operator new(size_t size) {
  if (void* memory = Allocate(size)) return memory;
  std::abort();
}
void operator delete(void* memory) noexcept { Free(memory); }
void operator delete(void* memory, size_t) noexcept { Free(memory); }

namespace meshnet::kv {
namespace {

constexpr uint32_t kContext = 4096;

class NothingRecycled : public SequenceProbe {
 public:
  PastLen IntactFrom(SequenceId) const override { return PastLen(0); }
};

HotKvConfig ConfigOf(uint32_t sessions) {
  HotKvConfig config;
  config.sessions_max = sessions;
  config.context_tokens = kContext;
  config.budget_tokens = sessions * kContext;
  config.vocabulary_size = 32000;
  config.incarnation.bytes.fill(1);
  return config;
}

SessionKey KeyOf(uint64_t number, uint64_t epoch = 1) {
  SessionKey key;
  // Spread as random ids are.
  const uint64_t spread = number * 0x9e3779b97f4a7c15u + 1;
  std::memcpy(key.session.bytes.data(), &spread, sizeof spread);
  key.epoch = Epoch(epoch);
  return key;
}

// A shard whose engine answers at once, driven as a worker does it.
class Shard {
 public:
  explicit Shard(uint32_t sessions) : kv_(ConfigOf(sessions), probe_), steps_(sessions), records_(sessions) {
    for (auto& records : records_) std::ranges::generate(records, [] { return std::make_shared<StepResult>(); });
  }

  HotKv& kv() { return kv_; }

  void Open(uint64_t number) {
    OpenRequest request;
    request.key = KeyOf(number);
    request.reserve_tokens = kContext;
    now_ += Duration(1000);
    OpenDecision decision = kv_.Open(request, now_);
    Perform(std::get<OpenAccepted>(decision).effects);
  }

  // Session `number` of the first ones, `tokens` more; from the start when its context is full.
  void Extend(uint64_t number, uint32_t tokens) {
    Step& step = steps_[number];
    if (step.seq.value == 0) {
      step.key = KeyOf(number);
      step.incarnation = ConfigOf(1).incarnation;
      step.prefix_digest = DigestOfPrefix("", {});
      step.tokens.reserve(512);
    }
    step.tokens.resize(tokens, 7);
    step.kind = tokens == 1 ? StepKind::kDecode : StepKind::kPrefill;
    if (step.start.value + tokens > kContext) {
      step.start = PastLen(0);
      step.kind = StepKind::kPrefill;
      step.prefix_digest = empty_;
    }
    step.ack = step.seq;
    step.seq = step.seq.Next();
    now_ += Duration(1000);
    StepDecision decision = kv_.Admit(step, nullptr, now_);
    const Ticket ticket = std::get<StepAdmitted>(decision).ticket;
    if (!kv_.Start(ticket, now_)) std::abort();
    // The record is the caller's to make; those that were acknowledged long ago are used again, so that only the core's allocations count.
    std::shared_ptr<StepResult>& record = records_[number][step.seq.value % records_[number].size()];
    if (record.use_count() != 1) std::abort();
    const Settled settled = kv_.Settle(ticket, StepFate::kDone, record, std::string(), now_);
    step.start = settled.result->past_len;
    step.prefix_digest = settled.result->digest;
  }

  void Release(uint64_t number) {
    now_ += Duration(1000);
    Perform(kv_.Release(KeyOf(number), now_).effects);
  }

 private:
  void Perform(const Effects& effects) {
    for (const SequenceId sequence : effects.removals) kv_.ConfirmRemoved(sequence);
  }

  NothingRecycled probe_;
  HotKv kv_;
  std::vector<Step> steps_;
  std::vector<std::array<std::shared_ptr<StepResult>, 3>> records_;
  const PrefixDigest empty_ = DigestOfPrefix("", {});
  Time now_{std::chrono::hours(1)};
};

// The median of several rounds, in nanoseconds a call.
template <typename Call>
double Nanoseconds(uint64_t calls, Call call) {
  std::vector<double> rounds;
  for (int round = 0; round < 7; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    for (uint64_t i = 0; i < calls; ++i) call(i);
    rounds.push_back(std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count() / static_cast<double>(calls));
  }
  std::ranges::sort(rounds);
  return rounds[rounds.size() / 2];
}

void Print(const char* what, uint32_t sessions, double value, const char* unit) {
  std::printf("%s,%u,%.1f,%s\n", what, sessions, value, unit);
}

// Every session is once as long as it can get, so that nothing grows any more.
void Warm(Shard& shard, uint32_t sessions) {
  for (uint32_t s = 0; s < sessions; ++s) shard.Open(s);
  for (uint32_t length = 0; length <= kContext; length += 512) {
    for (uint32_t s = 0; s < sessions; ++s) shard.Extend(s, 512);
  }
}

double AllocationsOfADecodeCycle(uint32_t sessions) {
  Shard shard(sessions);
  Warm(shard, sessions);
  for (uint32_t i = 0; i < 2 * sessions; ++i) shard.Extend(i % sessions, 1);
  const uint64_t before = allocation_count;
  const uint32_t cycles = 1000 * sessions;
  for (uint32_t i = 0; i < cycles; ++i) shard.Extend(i % sessions, 1);
  return static_cast<double>(allocation_count - before) / cycles;
}

void MeasureDecisions(uint32_t sessions) {
  Shard shard(sessions);
  Warm(shard, sessions);
  Print("decode_cycle", sessions, Nanoseconds(20000, [&](uint64_t i) { shard.Extend(i % sessions, 1); }), "ns per Admit+Start+Settle");
  Print("prefill_cycle", sessions, Nanoseconds(1000, [&](uint64_t i) { shard.Extend(i % sessions, 512); }) / 512, "ns per token of 512");
  uint64_t next = sessions;
  Print("open_evict", sessions, Nanoseconds(5000, [&](uint64_t) { shard.Open(next++); }), "ns per Open that evicts");
  // The eviction order is that of opening, so the newest are live.
  Print("release_open", sessions, Nanoseconds(5000, [&](uint64_t) {
    shard.Release(next - 1);
    shard.Open(next - 1);
  }), "ns per Release+Open");
}

void MeasureBytes(uint32_t sessions) {
  Shard shard(sessions);
  const int64_t empty = bytes_live;
  for (uint32_t s = 0; s < sessions; ++s) shard.Open(s);
  const int64_t open = bytes_live;
  Print("session", sessions, static_cast<double>(open - empty) / sessions, "bytes");
  for (uint32_t length = 0; length < kContext; length += 512) {
    for (uint32_t s = 0; s < sessions; ++s) shard.Extend(s, 512);
  }
  Print("token", sessions, static_cast<double>(bytes_live - open) / sessions / kContext, "bytes with kept reply and digests");
}

void MeasureDigest() {
  const std::vector<Token> chunk(512, 7);
  PrefixHasher hasher("");
  Print("digest_append_512", 1, Nanoseconds(2000, [&](uint64_t) { hasher.Append(chunk); }) / 512, "ns per token");
  PrefixDigest digest;
  Print("digest_append_1", 1, Nanoseconds(20000, [&](uint64_t) {
    hasher.Append(std::span(chunk).first(1));
    digest = hasher.Digest();
  }), "ns per token with its digest");
  if (digest.is_zero()) std::abort();
}

int Main(bool only_allocations) {
  double most = 0;
  std::printf("what,sessions,value,unit\n");
  for (const uint32_t sessions : {1u, 16u, 256u}) {
    const double allocations = AllocationsOfADecodeCycle(sessions);
    most = std::max(most, allocations);
    Print("decode_allocations", sessions, allocations, "per cycle once warm");
    if (only_allocations) continue;
    MeasureDecisions(sessions);
    MeasureBytes(sessions);
  }
  if (!only_allocations) MeasureDigest();
  return only_allocations && most > 0 ? 1 : 0;
}

}  // namespace
}  // namespace meshnet::kv

int main(int argc, char** argv) {
  CRYPTO_set_mem_functions(OpenSslAllocate, OpenSslReallocate, OpenSslFree);
  return meshnet::kv::Main(argc > 1 && std::strcmp(argv[1], "--allocations") == 0);
}
