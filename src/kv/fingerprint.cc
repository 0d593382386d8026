#include "kv/fingerprint.h"

#include <xxhash.h>

#include <array>
#include <bit>
#include <cstring>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

namespace meshnet::kv {
namespace {

// Collects fields on the stack and folds them when they fill it, so that nothing is allocated on the way of a step.
class Hasher {
 public:
  void Add(std::span<const std::byte> data) {
    if (data.size() > kWholeBytesMax) {
      const XXH128_hash_t hash = XXH3_128bits(data.data(), data.size());
      Append(&hash, sizeof hash);
    } else {
      Append(data.data(), data.size());
    }
  }
  template <typename T>
    requires(std::is_integral_v<T> || std::is_enum_v<T>)
  void Add(T value) {
    const uint64_t wide = static_cast<uint64_t>(value);
    Add(std::as_bytes(std::span(&wide, 1)));
  }
  void Add(float value) { Add(std::bit_cast<uint32_t>(value)); }
  template <typename Tag, typename Integer>
  void Add(Number<Tag, Integer> number) { Add(number.value); }
  template <typename Tag, size_t N>
  void Add(const Bytes<Tag, N>& bytes) { Add(std::as_bytes(std::span(bytes.bytes))); }
  // Lengths are hashed too, so that no two lists of fields run into each other.
  void Add(const std::string& text) {
    Add(text.size());
    Add(std::as_bytes(std::span(text)));
  }
  void Add(const LogitBias& bias) { Add(bias.token), Add(bias.bias); }
  void Add(const GrammarTrigger& trigger) { Add(trigger.type), Add(trigger.value), Add(trigger.token); }
  template <typename T>
  void Add(const std::vector<T>& list) {
    Add(list.size());
    if constexpr (std::is_arithmetic_v<T>) {
      Add(std::as_bytes(std::span(list)));
    } else {
      for (const T& item : list) Add(item);
    }
  }
  void Add(const HiddenState& rows) {
    Add(rows.rows()), Add(rows.width());
    Add(std::as_bytes(rows.values()));
  }
  void Add(const SamplingParams& sampling);

  Fingerprint Digest() const {
    const XXH128_hash_t hash = XXH3_128bits(buffer_.data(), used_);
    return {hash.high64, hash.low64};
  }

 private:
  static constexpr size_t kWholeBytesMax = 64;

  void Append(const void* data, size_t size) {
    if (size == 0) return;
    if (used_ + size > buffer_.size()) {
      const XXH128_hash_t hash = XXH3_128bits(buffer_.data(), used_);
      std::memcpy(buffer_.data(), &hash, sizeof hash);
      used_ = sizeof hash;
    }
    std::memcpy(buffer_.data() + used_, data, size);
    used_ += size;
  }

  std::array<std::byte, 512> buffer_;
  size_t used_ = 0;
};

// The binding names every field, so a field that is added to SamplingParams and forgotten here does not compile.
void Hasher::Add(const SamplingParams& sampling) {
  const auto& [seed, prompt_len, temperature, dynatemp_range, dynatemp_exponent, top_k, top_p, min_p, top_n_sigma, typical_p, xtc_probability,
               xtc_threshold, min_keep, repeat_last_n, repeat_penalty, presence_penalty, frequency_penalty, dry_multiplier, dry_base,
               dry_allowed_length, dry_penalty_last_n, dry_sequence_breakers, mirostat, mirostat_tau, mirostat_eta, adaptive_target,
               adaptive_decay, ignore_eos, samplers, logit_bias, grammar, grammar_type, grammar_lazy, grammar_triggers, preserved_tokens,
               generation_prompt, reasoning_budget_tokens, reasoning_budget_start, reasoning_budget_end, reasoning_budget_forced, logprobs,
               logprobs_wanted, post_sampling_probs] = sampling;
  const auto fields =
      std::tie(seed, prompt_len, temperature, dynatemp_range, dynatemp_exponent, top_k, top_p, min_p, top_n_sigma, typical_p, xtc_probability,
               xtc_threshold, min_keep, repeat_last_n, repeat_penalty, presence_penalty, frequency_penalty, dry_multiplier, dry_base,
               dry_allowed_length, dry_penalty_last_n, dry_sequence_breakers, mirostat, mirostat_tau, mirostat_eta, adaptive_target,
               adaptive_decay, ignore_eos, samplers, logit_bias, grammar, grammar_type, grammar_lazy, grammar_triggers, preserved_tokens,
               generation_prompt, reasoning_budget_tokens, reasoning_budget_start, reasoning_budget_end, reasoning_budget_forced, logprobs,
               logprobs_wanted, post_sampling_probs);
  std::apply([this](const auto&... field) { (Add(field), ...); }, fields);
}

}  // namespace

Fingerprint FingerprintOf(const Step& step) {
  Hasher hasher;
  hasher.Add(step.seq);
  hasher.Add(step.kind);
  hasher.Add(step.start);
  hasher.Add(step.prefix_digest);
  hasher.Add(step.tokens);
  hasher.Add(step.rows);
  hasher.Add(step.logits_wanted);
  hasher.Add(step.input.has_value());
  if (step.input) hasher.Add(*step.input);
  hasher.Add(step.sampling.has_value());
  if (step.sampling) hasher.Add(*step.sampling);
  return hasher.Digest();
}

}  // namespace meshnet::kv
