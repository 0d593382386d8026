#include "text/bounded_json.h"

#include <string>
#include <unordered_set>
#include <vector>

namespace meshnet::text {
namespace {

using nlohmann::ordered_json;

// Walks the text once without building anything and stops at the first fault.
class BoundsCheck : public nlohmann::json_sax<ordered_json> {
 public:
  explicit BoundsCheck(const JsonBounds& bounds) : bounds_(bounds) {}

  const ApiError& error() const { return error_; }

  bool null() override { return Count(); }
  bool boolean(bool) override { return Count(); }
  bool number_integer(number_integer_t) override { return Count(); }
  bool number_unsigned(number_unsigned_t) override { return Count(); }
  bool number_float(number_float_t, const string_t&) override { return Count(); }
  bool string(string_t&) override { return Count(); }
  bool binary(binary_t&) override { return Count(); }

  bool start_object(std::size_t) override {
    if (!Enter()) return false;
    keys_.emplace_back();
    return true;
  }
  bool key(string_t& name) override {
    // An array inside an object has no keys, so the innermost open object is the last one.
    last_key_ = name;
    key_comparisons_ += keys_.back().size();
    if (key_comparisons_ > bounds_.key_comparisons_max) return Fail("The request body has objects with too many keys.", "");
    if (keys_.back().insert(name).second) return true;
    return Fail("The key \"" + name.substr(0, 100) + "\" comes twice in one object of the request body.", name.substr(0, 100));
  }
  bool end_object() override {
    keys_.pop_back();
    --depth_;
    return true;
  }
  bool start_array(std::size_t) override { return Enter(); }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& fault) override {
    // nlohmann's text ends with what it read last, which is the user's: only its kind goes out.
    const bool overflow = fault.id == 406;
    return Fail(overflow ? "The request body has a number that is too large, at byte " + std::to_string(position) + "."
                         : "The request body is not valid JSON in UTF-8: it breaks at byte " + std::to_string(position) + ".",
                overflow ? last_key_.substr(0, 100) : "");
  }

 private:
  bool Count() {
    if (++values_ <= bounds_.values_max) return true;
    return Fail("The request body has more than " + std::to_string(bounds_.values_max) + " values.", "");
  }
  bool Enter() {
    if (!Count()) return false;
    if (++depth_ <= bounds_.depth_max) return true;
    return Fail("The request body nests deeper than " + std::to_string(bounds_.depth_max) + " levels.", last_key_.substr(0, 100));
  }
  bool Fail(std::string message, std::string param) {
    error_.message = std::move(message);
    error_.param = std::move(param);
    return false;
  }

  JsonBounds bounds_;
  size_t depth_ = 0;
  size_t values_ = 0;
  uint64_t key_comparisons_ = 0;
  std::vector<std::unordered_set<std::string>> keys_;
  std::string last_key_;
  ApiError error_;
};

}  // namespace

std::optional<std::string> JsonFault(std::string_view text, const JsonBounds& bounds) {
  if (text.size() > bounds.bytes_max) return "It has more than " + std::to_string(bounds.bytes_max) + " bytes.";
  BoundsCheck check(bounds);
  if (!ordered_json::sax_parse(text, &check)) return check.error().message;
  return std::nullopt;
}

std::variant<ordered_json, ApiError> ParseObject(std::string_view body, const JsonBounds& bounds) {
  if (body.size() > bounds.bytes_max) {
    ApiError error;
    error.status = 413;
    error.message = "The request body has " + std::to_string(body.size()) + " bytes; at most " + std::to_string(bounds.bytes_max) + " are taken.";
    error.code = "request_too_large";
    return error;
  }
  BoundsCheck check(bounds);
  if (!ordered_json::sax_parse(body, &check)) return check.error();
  // The text is proven to parse, so this neither throws nor returns a discarded value.
  ordered_json parsed = ordered_json::parse(body, nullptr, false);
  if (!parsed.is_object()) {
    ApiError error;
    error.message = "The request body must be a JSON object.";
    return error;
  }
  return parsed;
}

}  // namespace meshnet::text
