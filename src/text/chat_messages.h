// The `messages` of a chat request, checked and brought into one spelling, so that equal conversations give equal prompts. Pure.
#pragma once

#include <nlohmann/json.hpp>
#include <variant>

#include "text/text_model.h"

namespace meshnet::text {

inline constexpr size_t kMessagesMax = 16'384;

// An assistant's content that is null, missing, "" or parts without text becomes ""; a lone text part becomes a string; empty tool arguments
// become "{}". Images, audio and files are 501; anything else that is wrong is a 400 whose param is `messages[i]…`.
std::variant<nlohmann::ordered_json, ApiError> NormaliseMessages(const nlohmann::ordered_json& messages);

}  // namespace meshnet::text
