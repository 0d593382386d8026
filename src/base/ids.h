// The words of the project as distinct types, so that two neighbouring arguments cannot be swapped. Plain values, no I/O.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace meshnet {

// A token id of the model's vocabulary, as llama.cpp numbers them.
using Token = int32_t;

// An integer that only compares with its own kind. `Tag` is never defined.
template <typename Tag, typename Integer>
struct Number {
  Integer value = 0;

  constexpr Number() = default;
  constexpr explicit Number(Integer v) : value(v) {}
  constexpr Number Next() const { return Number(static_cast<Integer>(value + 1)); }
  friend constexpr auto operator<=>(const Number&, const Number&) = default;
};

using Epoch = Number<struct EpochTag, uint64_t>;          // number of a session's route; from 1
using StepSeq = Number<struct StepSeqTag, uint64_t>;      // gap-free number of a session's steps; from 1
using PastLen = Number<struct PastLenTag, uint32_t>;      // committed tokens == next position
using SequenceId = Number<struct SequenceIdTag, int32_t>; // the engine's local slot for a session; never on the wire

// A fixed number of bytes with a meaning.
template <typename Tag, size_t N>
struct Bytes {
  static constexpr size_t kSize = N;
  std::array<uint8_t, N> bytes{};

  friend constexpr auto operator<=>(const Bytes&, const Bytes&) = default;

  bool is_zero() const { return *this == Bytes(); }
  std::string Hex() const {
    static constexpr char digits[] = "0123456789abcdef";
    std::string text;
    text.reserve(2 * N);
    for (uint8_t byte : bytes) {
      text.push_back(digits[byte >> 4]);
      text.push_back(digits[byte & 15]);
    }
    return text;
  }
  // The raw N bytes, as they travel on the wire.
  std::string Raw() const { return std::string(reinterpret_cast<const char*>(bytes.data()), N); }
  // Nothing unless `raw` has exactly N bytes.
  static std::optional<Bytes> FromRaw(std::string_view raw) {
    if (raw.size() != N) return std::nullopt;
    Bytes result;
    for (size_t i = 0; i < N; ++i) result.bytes[i] = static_cast<uint8_t>(raw[i]);
    return result;
  }
  // Nothing unless `hex` is exactly 2N hex digits.
  static std::optional<Bytes> FromHex(std::string_view hex) {
    if (hex.size() != 2 * N) return std::nullopt;
    auto digit = [](char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; };
    Bytes result;
    for (size_t i = 0; i < N; ++i) {
      int high = digit(hex[2 * i]), low = digit(hex[2 * i + 1]);
      if (high < 0 || low < 0) return std::nullopt;
      result.bytes[i] = static_cast<uint8_t>(high << 4 | low);
    }
    return result;
  }
};

using SessionId = Bytes<struct SessionIdTag, 16>;       // random; knowing one is the right to use it, so it is never logged whole
using Incarnation = Bytes<struct IncarnationTag, 16>;   // random, one per worker process
using PrefixDigest = Bytes<struct PrefixDigestTag, 16>; // protocol/prefix_digest.h
using Sha256Digest = Bytes<struct Sha256Tag, 32>;

// Half-open range of trunk layers `[begin, end)`.
struct LayerRange {
  uint32_t begin = 0;
  uint32_t end = 0;

  uint32_t size() const { return end - begin; }
  bool empty() const { return begin >= end; }
  std::string Text() const {
    // Appended piece by piece: GCC 12 warns falsely (-Wrestrict) about literal + temporary.
    std::string text = "[";
    text.append(std::to_string(begin)).append(",").append(std::to_string(end)).append(")");
    return text;
  }
  friend auto operator<=>(const LayerRange&, const LayerRange&) = default;
};

// What one session is on a shard: the origin's `(route_session_id, route_epoch)`.
struct SessionKey {
  SessionId session;
  Epoch epoch;

  friend auto operator<=>(const SessionKey&, const SessionKey&) = default;
};

// Safe to log: the first 8 hex digits.
inline std::string IdPrefix(const SessionId& id) { return id.Hex().substr(0, 8); }

}  // namespace meshnet

template <typename Tag, size_t N>
struct std::hash<meshnet::Bytes<Tag, N>> {
  size_t operator()(const meshnet::Bytes<Tag, N>& value) const {
    return std::hash<std::string_view>()(std::string_view(reinterpret_cast<const char*>(value.bytes.data()), N));
  }
};
