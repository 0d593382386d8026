#include "gateway/replies.h"

#include <algorithm>

#include "base/check.h"

namespace meshnet::gateway {
namespace {

// llama-server's names, which clients match on.
const char* TypeOf(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    case 501: return "not_supported_error";
    case 503: return "unavailable_error";
    default: return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

// The longer the line, the later it is worth coming back; nobody knows how long answers take.
Duration RetryAfter(const SessionPool::Counts& counts) {
  return std::chrono::seconds(std::clamp<uint32_t>(1 + counts.waiting / std::max(counts.answers_max, 1u), 1, 30));
}

}  // namespace

std::string Dump(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

HttpReply JsonReply(int status, const nlohmann::ordered_json& json) {
  HttpReply reply;
  reply.status = status;
  reply.body = Dump(json);
  return reply;
}

ApiError MakeError(int status, std::string message, std::string code) {
  ApiError error;
  error.status = status;
  error.message = std::move(message);
  error.type = TypeOf(status);
  error.code = std::move(code);
  return error;
}

HttpReply ErrorReply(const ApiError& error) { return JsonReply(error.status, error.ToJson()); }

HttpReply ErrorReply(const ApiError& error, Duration retry_after) {
  HttpReply reply = ErrorReply(error);
  const int64_t seconds = std::max<int64_t>(1, std::chrono::ceil<std::chrono::seconds>(retry_after).count());
  reply.headers.emplace_back("Retry-After", std::to_string(seconds));
  return reply;
}

HttpReply ErrorReply(const AnswerError& error) {
  return error.retry_after ? ErrorReply(error.error, *error.retry_after) : ErrorReply(error.error);
}

std::string ServerErrorBody(int status) {
  switch (status) {
    case 404: return Dump(MakeError(404, "There is nothing at this path.").ToJson());
    case 413: return Dump(MakeError(413, "The request body is too large.", "request_too_large").ToJson());
    case 414: return Dump(MakeError(414, "The request's target is too long: its line may have 32 KiB.").ToJson());
    case 431: return Dump(MakeError(431, "The request's headers are too large: its head may have 64 KiB.").ToJson());
    case 500: return Dump(MakeError(500, "The gateway failed on this request.").ToJson());
    default: return Dump(MakeError(status, "The request is not valid HTTP.").ToJson());
  }
}

AnswerError FromFailure(const AnswerFailure& failure) {
  switch (failure.kind) {
    case AnswerFailure::Kind::kContextExceeded:
      return {MakeError(400, failure.message, "context_length_exceeded"), std::nullopt, "context-exceeded"};
    case AnswerFailure::Kind::kCapacity:
      return {MakeError(429, "The workers had no room for this answer's session: " + failure.message, "rate_limit_exceeded"),
              failure.retry_after.value_or(std::chrono::seconds(1)), "no-capacity"};
    case AnswerFailure::Kind::kBadRequest: return {MakeError(400, failure.message), std::nullopt, "invalid-request"};
    case AnswerFailure::Kind::kRouteDown: return RouteDown(failure.message);
    case AnswerFailure::Kind::kInternal: return {MakeError(500, failure.message), std::nullopt, "internal"};
  }
  MESHNET_CHECK(false && "closed enum");
}

AnswerError FromRefusal(TurnRefusal refusal, const SessionPool::Counts& counts) {
  switch (refusal) {
    case TurnRefusal::kLineFull: return LineFull(1, counts);
    case TurnRefusal::kDeadline:
      return {MakeError(503, "No session became free in time.", "queue_timeout"), RetryAfter(counts), "queue-timeout"};
    case TurnRefusal::kCancelled: return {MakeError(499, "The client went away."), std::nullopt, "cancelled"};
    case TurnRefusal::kStopped: return {MakeError(503, "The gateway is stopping.", "gateway_stopping"), RetryAfter(counts), "gateway-stopping"};
  }
  MESHNET_CHECK(false && "closed enum");
}

AnswerError LineFull(size_t asked, const SessionPool::Counts& counts) {
  std::string message = std::to_string(counts.answering) + " of " + std::to_string(counts.answers_max) + " sessions are taken and " +
                        std::to_string(counts.waiting) + " answers wait for one";
  message += counts.room() == 0 ? ": the queue is full." : ", so there is room for " + std::to_string(counts.room()) + " more.";
  if (asked > 1) message += " This request needs " + std::to_string(asked) + " at once.";
  return {MakeError(429, std::move(message), "rate_limit_exceeded"), RetryAfter(counts), "queue-full"};
}

ApiError TooManyChoices(size_t prompts, size_t choices, const SessionPool::Counts& counts) {
  ApiError error = MakeError(400, "The request asks for " + std::to_string(choices) + " answers (prompts times n), but at most " +
                                      std::to_string(counts.places_max()) + " fit in here: " + std::to_string(counts.answers_max) +
                                      " at once and " + std::to_string(counts.waiting_max) + " in the queue. Send fewer prompts or a smaller n.");
  error.param = prompts > 1 ? "prompt" : "n";
  return error;
}

AnswerError RouteDown(const std::string& trouble) {
  return {MakeError(503, "The route cannot decode now: " + trouble, "route_unavailable"), std::chrono::seconds(2), "route-down"};
}

std::string SseEvent(const nlohmann::ordered_json& json) {
  std::string event = "data: ";
  event.append(Dump(json)).append("\n\n");
  return event;
}

}  // namespace meshnet::gateway
