// What the model is and how it cuts text: /v1/models, /props, /tokenize, /detokenize, /apply-template.
#pragma once

#include <cstdint>
#include <string>

#include "gateway/http_types.h"
#include "session/route.h"
#include "text/text_model.h"

namespace meshnet::gateway {

// Thread-safe. `route`, `text` outlive it.
class Models {
 public:
  Models(const Route& route, const TextModel& text, std::string model_id);

  HttpReply List() const;
  HttpReply One(const std::string& id) const;
  // `sessions_max`: answers at once.
  HttpReply Props(uint32_t sessions_max) const;
  HttpReply Tokenize(const HttpRequest& request) const;
  HttpReply Detokenize(const HttpRequest& request) const;
  HttpReply ApplyTemplate(const HttpRequest& request) const;

 private:
  nlohmann::ordered_json Entry() const;
  using TextCall = std::variant<nlohmann::ordered_json, ApiError> (TextModel::*)(const std::string&) const;
  HttpReply Call(TextCall call, const HttpRequest& request) const;

  const Route& route_;
  const TextModel& text_;
  const std::string model_id_;
  const int64_t created_;  // seconds since 1970
};

}  // namespace meshnet::gateway
