#include "base/system_clock.h"
#include "cli/arguments.h"
#include "cli/gateway_flags.h"
#include "cli/report.h"
#include "cli/tls_flags.h"
#include "cli/url.h"
#include "cli/verbs.h"
#include "text/llama/llama_text_model.h"
#include "wire/address.h"
#include "wire/shard_grpc_client.h"

namespace meshnet::cli {
namespace {

constexpr Duration kAskTimeout = std::chrono::seconds(5);
constexpr Duration kRetryPause = std::chrono::milliseconds(250);

struct GatewayWish {
  std::vector<std::string> route;
  std::string listen = "127.0.0.1:8080";
  std::string vocab;
  bool insecure = false;
  TlsOptions tls;
  uint32_t connect_seconds = 30;
};

// Until every worker has answered once: they may be started after the gateway. What they refuse does not change by waiting.
Status ConnectRoute(Route& route, Duration limit, Signals& signals) {
  SystemClock clock;
  Time deadline = clock.Now() + limit;
  bool told = false;
  for (;;) {
    Status connected = route.Connect(std::min(limit, kAskTimeout));
    if (connected.ok() || connected.code() != StatusCode::kPeerUnreachable || clock.Now() >= deadline) return connected;
    if (!told) Say("waiting for the route: " + connected.message());
    told = true;
    if (signals.Wait(kRetryPause)) return Failure("stopped while waiting for the route: " + connected.message());
  }
}

Status CheckVocabulary(const TextModel& text, Route& route, const std::string& vocab) {
  std::shared_ptr<const Route::View> view = route.view();
  if (!view) return PeerUnreachable("the route was lost again: " + route.trouble());
  const ShardDescription& head = view->stages.front().description;
  if (text.vocabulary_size() == head.vocabulary_size) return OkStatus();
  return Refused("--vocab " + vocab + " has " + std::to_string(text.vocabulary_size()) + " tokens, the route's " + head.model_name + " has " +
                 std::to_string(head.vocabulary_size) + ": it belongs to another model");
}

Status RunGateway(const GatewayWish& wish, const GatewayFlags& flags) {
  GatewayOptions options = flags.Resolve(wish.listen, wish.insecure);
  Status address = meshnet::Gateway::CheckOptions(options);
  if (!address.ok()) return address;
  Result<TextModelOptions> text_options = flags.ResolveText(wish.vocab);
  if (!text_options.ok()) return text_options.status();
  Signals signals;
  std::vector<std::unique_ptr<ShardLink>> links;
  std::vector<ShardLink*> pointers;
  for (const std::string& worker : wish.route) {
    Result<std::unique_ptr<ShardLink>> link = ConnectShard(worker, wish.tls);
    if (!link.ok()) return link.status();
    links.push_back(std::move(*link));
    pointers.push_back(links.back().get());
  }
  Result<std::unique_ptr<TextModel>> text = CreateLlamaTextModel(*text_options);
  if (!text.ok()) return text.status();
  SystemClock clock;
  Route route(pointers, clock);
  // Probes answer while the workers still load.
  Result<std::unique_ptr<meshnet::Gateway>> gateway = meshnet::Gateway::Start(options, route, **text, pointers, clock);
  if (!gateway.ok()) return gateway.status();
  Status connected = ConnectRoute(route, std::chrono::seconds(wish.connect_seconds), signals);
  if (connected.ok()) connected = CheckVocabulary(**text, route, wish.vocab);
  if (!connected.ok()) {
    (*gateway)->Stop();
    return connected;
  }
  for (const std::string& warning : route.warnings()) Say(warning);
  return ServeUntilSignal(**gateway, options, signals, flags.drain_limit(), Foundation());
}

}  // namespace

int Gateway(int argc, char** argv) {
  GatewayWish wish;
  GatewayFlags flags;
  Arguments arguments("gateway", "The OpenAI gateway over workers that run already.");
  arguments.List("--route", &wish.route, "the workers, comma separated, in any order: host:port,[::1]:port,unix:/path");
  arguments.Text("--listen", &wish.listen, "host:port or [::1]:port; port 0: any");
  arguments.Text("--vocab", &wish.vocab, "a GGUF with the tokenizer: the whole model or the head's shard");
  arguments.Switch("--insecure", &wish.insecure, "allow plaintext to workers and clients off loopback");
  arguments.Number("--connect-timeout", &wish.connect_seconds, 0, 86400, "seconds to wait for the workers at the start");
  AddTlsFlags(arguments, &wish.tls);
  flags.AddTo(arguments);
  if (std::optional<int> code = arguments.Parse(argc, argv)) return *code;
  if (wish.route.empty()) return arguments.Usage("--route is needed");
  if (wish.vocab.empty()) return arguments.Usage("--vocab is needed");
  for (const std::string& worker : wish.route) {
    Result<Address> address = ParseAddress(worker, kWorkerPort);
    if (!address.ok()) return arguments.Usage("--route: " + address.status().message());
    if (address->kind == Address::Kind::kTcp && address->port == 0) return arguments.Usage("--route: " + worker + ": port 0 leads nowhere");
  }
  Result<Address> listen = ParseAddress(wish.listen, kGatewayPort);
  if (!listen.ok() || listen->kind != Address::Kind::kTcp) {
    return arguments.Usage("--listen: " + (listen.ok() ? "a host and port is needed, not " + wish.listen : listen.status().message()));
  }
  wish.listen = listen->Text();
  wish.tls.insecure = wish.insecure;
  return Report(RunGateway(wish, flags));
}

}  // namespace meshnet::cli
