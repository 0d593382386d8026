// Bytes as the body of a chat or a completion: read with all bounds kept, or a 4xx or 501 that names the culprit; in bounded time, and nothing throws.
#include <string>
#include <variant>

#include "base/check.h"
#include "text/request_body.h"

namespace {

using namespace meshnet;
using namespace meshnet::text;

void CheckError(const ApiError& error) {
  MESHNET_CHECK((error.status >= 400 && error.status < 500) || error.status == 501);
  MESHNET_CHECK(!error.message.empty());
  // Echoed names are cut, so an error stays small however large the body is.
  MESHNET_CHECK(error.ToJson().dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace).size() < 16384);
}

void CheckAnswer(const AnswerFields& answer) {
  MESHNET_CHECK(answer.count >= 1 && answer.count <= kChoicesMax);
  MESHNET_CHECK(answer.stops.size() <= kStopsMax && answer.logprobs <= kTopLogprobsMax);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string body(reinterpret_cast<const char*>(data), size);
  RequestLimits limits;
  limits.context_tokens = 512;
  limits.vocabulary_size = 256;
  auto chat = ReadChatBody(body, limits);
  if (const auto* error = std::get_if<ApiError>(&chat)) {
    CheckError(*error);
  } else {
    CheckAnswer(std::get<ChatBody>(chat).answer);
    MESHNET_CHECK(std::get<ChatBody>(chat).messages.is_array());
  }
  auto completion = ReadCompletionBody(body, limits);
  if (const auto* error = std::get_if<ApiError>(&completion)) {
    CheckError(*error);
  } else {
    const auto& read = std::get<CompletionBody>(completion);
    CheckAnswer(read.answer);
    MESHNET_CHECK(!read.prompts.empty() && read.prompts.size() <= kPromptsMax);
    for (const auto& prompt : read.prompts) {
      for (const PromptPiece& piece : prompt) {
        if (const Token* token = std::get_if<Token>(&piece)) MESHNET_CHECK(*token >= 0 && *token < 256);
      }
    }
  }
  return 0;
}
