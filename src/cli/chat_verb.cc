#include "cli/chat_http.h"
#include "cli/gateway_address_flags.h"
#include "cli/verbs.h"

namespace meshnet::cli {

int Chat(int argc, char** argv) {
  GatewayAddressFlags gateway;
  ChatFlags flags;
  std::string model;
  Arguments arguments("chat", "Chat in the terminal with any running gateway.");
  gateway.AddTo(arguments);
  arguments.Text("--model", &model, "model id to ask for");
  flags.AddTo(arguments);
  if (std::optional<int> code = arguments.Parse(argc, argv)) return *code;
  std::optional<Url> url = ParseUrl(gateway.url);
  if (!url) return arguments.Usage("--url " + gateway.url + ": not a URL such as http://127.0.0.1:8080");
  Signals signals;
  std::unique_ptr<ChatBackend> backend = CreateHttpBackend({*url, gateway.api_key, model});
  return Converse(*backend, flags, arguments, signals);
}

}  // namespace meshnet::cli
