// The world's failures (files, peers, memory) as values. A protocol refusal is not one of them: see protocol/refusal.h.
#pragma once

#include <string>
#include <utility>
#include <variant>

#include "base/check.h"

namespace meshnet {

// Each code is one exit code of the command line (docs/contract.md).
enum class StatusCode {
  kOk = 0,
  kFailure = 1,
  kUsage = 2,
  kBadConfiguration = 3,
  kPeerUnreachable = 4,
  kBadModel = 5,
  kOutOfMemory = 6,
  kRefused = 7,
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  // A sentence for people: what was wrong, where, and what to do. Never used to choose a retry.
  const std::string& message() const { return message_; }
  int exit_code() const { return static_cast<int>(code_); }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status OkStatus() { return Status(); }
inline Status Failure(std::string message) { return Status(StatusCode::kFailure, std::move(message)); }
inline Status BadConfiguration(std::string message) { return Status(StatusCode::kBadConfiguration, std::move(message)); }
inline Status PeerUnreachable(std::string message) { return Status(StatusCode::kPeerUnreachable, std::move(message)); }
inline Status BadModel(std::string message) { return Status(StatusCode::kBadModel, std::move(message)); }
inline Status OutOfMemory(std::string message) { return Status(StatusCode::kOutOfMemory, std::move(message)); }
inline Status Refused(std::string message) { return Status(StatusCode::kRefused, std::move(message)); }

// A value or the reason why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}
  Result(Status status) : state_(std::move(status)) { MESHNET_CHECK(!std::get<Status>(state_).ok()); }

  bool ok() const { return std::holds_alternative<T>(state_); }
  const T& value() const& { MESHNET_CHECK(ok()); return std::get<T>(state_); }
  T& value() & { MESHNET_CHECK(ok()); return std::get<T>(state_); }
  T&& value() && { MESHNET_CHECK(ok()); return std::get<T>(std::move(state_)); }
  Status status() const { return ok() ? OkStatus() : std::get<Status>(state_); }

  const T& operator*() const& { return value(); }
  T& operator*() & { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  const T* operator->() const { return &value(); }
  T* operator->() { return &value(); }

 private:
  std::variant<T, Status> state_;
};

}  // namespace meshnet
