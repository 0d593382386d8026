// POST /v1/chat/completions and /v1/completions: from a request's bytes to its answer, streamed or whole, watching whether its client is there.
#pragma once

#include <memory>
#include <string>

#include "gateway/answer_in_flight.h"
#include "gateway/http_types.h"
#include "session/route.h"
#include "text/text_model.h"

namespace meshnet::gateway {

// Everything outlives the object.
struct CompletionsOptions {
  Route* route = nullptr;
  const TextModel* text = nullptr;
  std::string model_id;
  AnswerEnvironment environment;
};

// Thread-safe.
class Completions {
 public:
  explicit Completions(CompletionsOptions options) : options_(std::move(options)) {}

  // `owner` is whose sessions may be continued. Blocks until a whole body is there, or a stream may begin.
  HttpReply Handle(ApiKind kind, const HttpRequest& request, const Peer& peer, const std::string& owner) const;

 private:
  CompletionsOptions options_;
};

}  // namespace meshnet::gateway
