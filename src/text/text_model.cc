#include "text/text_model.h"

namespace meshnet {

nlohmann::ordered_json ApiError::ToJson() const {
  auto text_or_null = [](const std::string& text) { return text.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(text); };
  nlohmann::ordered_json error = {{"message", message}, {"type", type}, {"param", text_or_null(param)}, {"code", text_or_null(code)}};
  for (const auto& [name, value] : details.items()) error[name] = value;
  return {{"error", std::move(error)}};
}

}  // namespace meshnet
