// The bodies the gateway sends: JSON, OpenAI's errors, and the framing of server-sent events. Pure.
#pragma once

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>

#include "base/clock.h"
#include "gateway/http_types.h"
#include "session/session_driver.h"
#include "session/session_pool.h"
#include "text/text_model.h"

namespace meshnet::gateway {

// One line; bytes that are not UTF-8 become the replacement character.
std::string Dump(const nlohmann::ordered_json& json);
HttpReply JsonReply(int status, const nlohmann::ordered_json& json);

// An error with the type that llama-server gives that status.
ApiError MakeError(int status, std::string message, std::string code = "");
// Body and headers; `retry_after` in whole seconds, at least one.
HttpReply ErrorReply(const ApiError& error);
HttpReply ErrorReply(const ApiError& error, Duration retry_after);
// What the HTTP server found itself, before any handler.
std::string ServerErrorBody(int status);

// Why an answer has none, as its client hears it.
struct AnswerError {
  ApiError error;
  std::optional<Duration> retry_after;
  const char* reason = "";  // label of meshnet_refusals_total
};
AnswerError FromFailure(const AnswerFailure& failure);
AnswerError FromRefusal(TurnRefusal refusal, const SessionPool::Counts& counts);
// A request that needs `asked` places where `counts` has room for fewer now.
AnswerError LineFull(size_t asked, const SessionPool::Counts& counts);
// A request that needs more places than there ever are.
ApiError TooManyChoices(size_t prompts, size_t choices, const SessionPool::Counts& counts);
AnswerError RouteDown(const std::string& trouble);
HttpReply ErrorReply(const AnswerError& error);

// "data: {json}\n\n"
std::string SseEvent(const nlohmann::ordered_json& json);
inline constexpr const char* kSseDone = "data: [DONE]\n\n";
// Clients skip it; it keeps proxies from giving up, and shows whether anybody is there.
inline constexpr const char* kSseComment = ": still working\n\n";

}  // namespace meshnet::gateway
