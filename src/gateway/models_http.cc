#include "gateway/models_http.h"

#include <chrono>

#include "gateway/replies.h"

namespace meshnet::gateway {

Models::Models(const Route& route, const TextModel& text, std::string model_id)
    : route_(route), text_(text), model_id_(std::move(model_id)),
      created_(std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count()) {}

nlohmann::ordered_json Models::Entry() const {
  nlohmann::ordered_json meta = {{"n_vocab", text_.vocabulary_size()}, {"n_ctx_train", text_.training_context()}};
  if (const auto view = route_.view()) meta["n_ctx"] = view->limits.context_tokens;
  return {{"id", model_id_}, {"object", "model"}, {"created", created_}, {"owned_by", "meshnet"}, {"meta", std::move(meta)}};
}

HttpReply Models::List() const { return JsonReply(200, {{"object", "list"}, {"data", nlohmann::ordered_json::array({Entry()})}}); }

HttpReply Models::One(const std::string& id) const {
  if (id == model_id_) return JsonReply(200, Entry());
  ApiError error = MakeError(404, "The model \"" + id + "\" is not served here; this is \"" + model_id_ + "\".", "model_not_found");
  error.type = "invalid_request_error";
  error.param = "model";
  return ErrorReply(error);
}

HttpReply Models::Props(uint32_t sessions_max) const {
  nlohmann::ordered_json props = text_.Props();
  props["model_alias"] = model_id_;
  props["total_slots"] = sessions_max;
  if (const auto view = route_.view()) props["default_generation_settings"]["n_ctx"] = view->limits.context_tokens;
  return JsonReply(200, props);
}

HttpReply Models::Call(TextCall call, const HttpRequest& request) const {
  if (!text_.has_tokenizer()) return ErrorReply(MakeError(501, "This model's file has no tokenizer; only token ids work."));
  const auto answer = (text_.*call)(request.body);
  if (const auto* error = std::get_if<ApiError>(&answer)) return ErrorReply(*error);
  return JsonReply(200, std::get<nlohmann::ordered_json>(answer));
}

HttpReply Models::Tokenize(const HttpRequest& request) const { return Call(&TextModel::Tokenize, request); }
HttpReply Models::Detokenize(const HttpRequest& request) const { return Call(&TextModel::Detokenize, request); }
HttpReply Models::ApplyTemplate(const HttpRequest& request) const { return Call(&TextModel::ApplyTemplate, request); }

}  // namespace meshnet::gateway
