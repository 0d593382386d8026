#include "cli/gateway_flags.h"

#include <unistd.h>

#include <fstream>
#include <iterator>

#include "base/system_clock.h"
#include "cli/readiness_http.h"
#include "cli/report.h"

namespace meshnet::cli {
namespace {

constexpr Duration kPace = std::chrono::milliseconds(200);
constexpr Duration kStartPace = std::chrono::milliseconds(20);
constexpr Duration kReadyAnswerLimit = std::chrono::seconds(2);

// Where a client on this machine finds a gateway that listens everywhere.
std::string LocalAddress(const std::string& address) {
  for (const char* everywhere : {"0.0.0.0:", "[::]:"}) {
    std::string prefix = everywhere;
    if (address.rfind(prefix, 0) == 0) return (prefix[0] == '[' ? "[::1]:" : "127.0.0.1:") + address.substr(prefix.size());
  }
  return address;
}

// Ends when no answer runs, the limit is over or another signal came.
void Drain(meshnet::Gateway& gateway, Signals& signals, Duration limit, const Foundation& foundation) {
  SystemClock clock;
  Time deadline = clock.Now() + limit;
  gateway.BeginDrain();
  while (!gateway.WaitDrained(kPace / 4)) {
    const bool signalled = signals.Wait(Duration(0)).has_value();
    if (!signalled && clock.Now() < deadline) continue;
    Say(signalled ? "a second signal: stopping at once" : "answers still run after the time they had: stopping at once");
    foundation.abandon();
    return;
  }
}

}  // namespace

void GatewayFlags::AddTo(Arguments& arguments) {
  arguments.Text("--api-key-file", &api_key_file_, "one key a line, `name:key` or a key alone");
  arguments.Text("-a,--alias", &alias_, "model id in /v1/models (default: the model's name)");
  arguments.Text("--https-cert", &https_cert_, "serve HTTPS with this certificate (PEM); needs --https-key");
  arguments.Text("--https-key", &https_key_, "its private key (PEM)");
  arguments.Text("--chat-template", &chat_template_, "Jinja chat template instead of the model's own");
  arguments.Text("--chat-template-file", &chat_template_file_, "the same from a file");
  arguments.Number("--queue-max", &queue_max_, 0, 100000, "requests that may wait for a session; beyond it 429");
  arguments.Number("--drain-seconds", &drain_seconds_, 0, 86400, "how long answers may go on after the first signal");
}

GatewayOptions GatewayFlags::Resolve(const std::string& listen, bool insecure) const {
  GatewayOptions options;
  options.listen = listen;
  options.api_key_file = api_key_file_;
  options.insecure = insecure;
  options.model_id = alias_;
  options.queue_max = queue_max_;
  options.tls_certificate_path = https_cert_;
  options.tls_key_path = https_key_;
  return options;
}

Result<TextModelOptions> GatewayFlags::ResolveText(const std::string& vocab_path) const {
  TextModelOptions options;
  options.vocab_path = vocab_path;
  options.chat_template = chat_template_;
  if (chat_template_file_.empty()) return options;
  std::ifstream file(chat_template_file_, std::ios::binary);
  if (!file) return BadConfiguration("--chat-template-file " + chat_template_file_ + " cannot be read");
  options.chat_template.assign(std::istreambuf_iterator<char>(file), {});
  return options;
}

Status ServeUntilSignal(meshnet::Gateway& gateway, const GatewayOptions& options, Signals& signals, Duration drain_limit,
                        const Foundation& foundation) {
  std::string url = (options.tls_certificate_path.empty() ? "http://" : "https://") + LocalAddress(gateway.address());
  bool announced = false;
  std::optional<Status> failed;
  while (!(failed = foundation.failure())) {
    if (!announced && AnswersReady(url, kReadyAnswerLimit)) {
      announced = true;
      Say("ready at " + url);
      if (isatty(STDOUT_FILENO) == 0) Print(url + "\n");  // a person has read it already
    }
    if (signals.Wait(announced ? kPace : kStartPace)) {
      Say("stopping; answers in flight go on, a second signal ends them");
      EndAtTheLatest(std::chrono::duration_cast<std::chrono::seconds>(drain_limit) + kStopLimit);
      Drain(gateway, signals, drain_limit, foundation);
      break;
    }
  }
  gateway.Stop();
  return failed ? *failed : OkStatus();
}

}  // namespace meshnet::cli
