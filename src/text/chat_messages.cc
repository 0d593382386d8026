#include "text/chat_messages.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "text/bounded_json.h"
#include "text/request_fields.h"

namespace meshnet::text {
namespace {

using nlohmann::ordered_json;

// What clients send back from an earlier answer, or for another server, and what no template reads.
constexpr KnownField kIgnoredInMessage[] = {
    {"refusal", "part of OpenAI's answers"},        {"annotations", "part of OpenAI's answers"},   {"audio", "null in text answers"},
    {"function_call", "null in new answers"},       {"id", "a client's own number"},               {"cache_control", "caching needs no marks"},
    {"reasoning_details", "another server's form"}, {"provider_specific_fields", "another server's"},
};
constexpr KnownField kIgnoredInPart[] = {{"cache_control", "caching needs no marks"}, {"annotations", "part of OpenAI's answers"}};
constexpr KnownField kIgnoredInCall[] = {{"index", "a position in a stream"}, {"cache_control", "caching needs no marks"}};

bool IsMedia(std::string_view type) {
  for (std::string_view media : {"image_url", "input_image", "image", "input_audio", "audio", "audio_url", "input_video", "video_url", "file", "input_file"}) {
    if (type == media) return true;
  }
  return false;
}

class Normaliser {
 public:
  std::optional<ApiError> error;

  ordered_json Message(const ordered_json& source, const std::string& path);

 private:
  bool Fail(const std::string& param, const std::string& message) {
    if (!error) error = BadRequest(param, message);
    return false;
  }
  bool Take(const FieldReader& fields) {
    if (!fields.ok() && !error) error = fields.error();
    return fields.ok();
  }
  bool Content(const ordered_json* content, const std::string& role, const std::string& path, ordered_json* message);
  bool Part(const ordered_json& part, const std::string& path, std::string* text);
  bool ToolCalls(const ordered_json& calls, const std::string& path, ordered_json* message);
};

bool Normaliser::Part(const ordered_json& part, const std::string& path, std::string* text) {
  if (!part.is_object()) return Fail(path, "\"" + path + "\" must be an object.");
  FieldReader fields(part, path + ".");
  const std::string type = fields.String("type", 100).value_or("");
  if (IsMedia(type)) {
    Fail(path, "\"" + path + "\" is of the type \"" + type + "\": this gateway serves text only.");
    error->status = 501;
    error->type = "not_supported_error";
    error->code = "unsupported_content";
    return false;
  }
  if (type != "text") return Take(fields) && Fail(path + ".type", "\"" + path + ".type\" must be \"text\".");
  *text = fields.String("text", SIZE_MAX).value_or("");
  fields.RefuseRest(kIgnoredInPart, {});
  return Take(fields);
}

bool Normaliser::Content(const ordered_json* content, const std::string& role, const std::string& path, ordered_json* message) {
  if (content == nullptr) {
    // What a tool returned may well be nothing.
    if (role != "assistant" && role != "tool") return Fail(path, "\"" + path + "\" is required.");
    (*message)["content"] = "";
    return true;
  }
  if (content->is_string()) {
    (*message)["content"] = *content;
    return true;
  }
  if (!content->is_array()) return Fail(path, "\"" + path + "\" must be a string or an array of parts, not " + TypeName(*content) + ".");
  ordered_json parts = ordered_json::array();
  for (size_t i = 0; i < content->size(); ++i) {
    std::string text;
    if (!Part((*content)[i], path + "[" + std::to_string(i) + "]", &text)) return false;
    if (!text.empty()) parts.push_back({{"type", "text"}, {"text", std::move(text)}});
  }
  if (parts.empty()) {
    (*message)["content"] = "";
  } else if (parts.size() == 1) {
    (*message)["content"] = parts[0]["text"];
  } else {
    (*message)["content"] = std::move(parts);
  }
  return true;
}

bool Normaliser::ToolCalls(const ordered_json& calls, const std::string& path, ordered_json* message) {
  ordered_json result = ordered_json::array();
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string call_path = path + "[" + std::to_string(i) + "]";
    if (!calls[i].is_object()) return Fail(call_path, "\"" + call_path + "\" must be an object.");
    FieldReader call(calls[i], call_path + ".");
    const std::string type = call.String("type", 100).value_or("function");
    const std::string id = call.String("id", 256).value_or("");
    const ordered_json* function = call.Object("function");
    call.RefuseRest(kIgnoredInCall, {});
    if (!Take(call)) return false;
    if (type != "function") return Fail(call_path + ".type", "\"" + call_path + ".type\" must be \"function\".");
    if (function == nullptr) return Fail(call_path + ".function", "\"" + call_path + ".function\" is required.");
    FieldReader fields(*function, call_path + ".function.");
    const auto name = fields.String("name", 256);
    const ordered_json* arguments = fields.Value("arguments");
    fields.RefuseRest({}, {});
    if (!Take(fields)) return false;
    if (!name || name->empty()) return Fail(call_path + ".function.name", "\"" + call_path + ".function.name\" is required.");
    std::string text = arguments == nullptr ? "" : arguments->is_string() ? arguments->get<std::string>() : arguments->dump();
    if (text.find_first_not_of(" \t\r\n") == std::string::npos) text = "{}";
    // Templates get it as JSON; a call that was cut off cannot be rendered.
    const JsonBounds bounds{.bytes_max = 8u << 20, .depth_max = 64, .values_max = 500'000, .key_comparisons_max = 4u << 20};
    if (JsonFault(text, bounds)) {
      return Fail(call_path + ".function.arguments", "\"" + call_path + ".function.arguments\" must be JSON in a string, at most 64 levels deep.");
    }
    ordered_json normal = {{"type", "function"}, {"function", {{"name", *name}, {"arguments", std::move(text)}}}};
    if (!id.empty()) normal["id"] = id;
    result.push_back(std::move(normal));
  }
  (*message)["tool_calls"] = std::move(result);
  return true;
}

ordered_json Normaliser::Message(const ordered_json& source, const std::string& path) {
  if (!source.is_object()) {
    Fail(path, "\"" + path + "\" must be an object.");
    return {};
  }
  FieldReader fields(source, path + ".");
  const auto role = fields.String("role", 100);
  const ordered_json* content = fields.Value("content");
  const ordered_json* calls = fields.Array("tool_calls", 1000);
  const auto name = fields.String("name", 256);
  const auto call_id = fields.String("tool_call_id", 256);
  auto reasoning = fields.String("reasoning_content", SIZE_MAX);
  if (const auto other_name = fields.String("reasoning", SIZE_MAX); other_name && !reasoning) reasoning = other_name;
  fields.RefuseRest(kIgnoredInMessage, {});
  if (!Take(fields)) return {};
  if (!role) {
    Fail(path + ".role", "\"" + path + ".role\" is required.");
    return {};
  }
  if (*role != "system" && *role != "developer" && *role != "user" && *role != "assistant" && *role != "tool") {
    Fail(path + ".role", "\"" + path + ".role\" must be system, developer, user, assistant or tool.");
    return {};
  }
  ordered_json message = {{"role", *role}};
  if (!Content(content, *role, path + ".content", &message)) return {};
  if (calls != nullptr && !calls->empty()) {
    if (*role != "assistant") {
      Fail(path + ".tool_calls", "\"" + path + ".tool_calls\" belongs to the role assistant.");
      return {};
    }
    if (!ToolCalls(*calls, path + ".tool_calls", &message)) return {};
  }
  if (name) message["name"] = *name;
  if (call_id) message["tool_call_id"] = *call_id;
  if (reasoning && !reasoning->empty()) message["reasoning_content"] = *reasoning;
  return message;
}

}  // namespace

std::variant<ordered_json, ApiError> NormaliseMessages(const ordered_json& messages) {
  if (!messages.is_array()) return BadRequest("messages", std::string("\"messages\" must be an array, not ") + TypeName(messages) + ".");
  if (messages.empty()) return BadRequest("messages", "\"messages\" is empty.");
  if (messages.size() > kMessagesMax) return BadRequest("messages", "\"messages\" has more than " + std::to_string(kMessagesMax) + " elements.");
  Normaliser normaliser;
  ordered_json result = ordered_json::array();
  for (size_t i = 0; i < messages.size() && !normaliser.error; ++i) {
    result.push_back(normaliser.Message(messages[i], "messages[" + std::to_string(i) + "]"));
  }
  if (normaliser.error) return *normaliser.error;
  return result;
}

}  // namespace meshnet::text
