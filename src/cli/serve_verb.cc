#include "base/system_clock.h"
#include "cli/arguments.h"
#include "cli/embedded_cluster.h"
#include "cli/gateway_flags.h"
#include "cli/report.h"
#include "cli/split_flags.h"
#include "cli/url.h"
#include "cli/verbs.h"
#include "text/llama/llama_text_model.h"
#include "wire/address.h"

namespace meshnet::cli {
namespace {

struct ServeWish {
  std::string model_path, host = "127.0.0.1";
  uint32_t port = kGatewayPort;
  bool insecure = false;
  SplitWish split;
  uint32_t start_seconds = 600, silence_seconds = 30;
};

// Asks the workers to end and waits for that; another signal ends them at once.
void StopWorkers(EmbeddedCluster& cluster, Signals& signals) {
  EndAtTheLatest(kStopLimit);
  cluster.RequestStop(StopKind::kGraceful);
  while (!cluster.supervisor().ended()) {
    if (!signals.Wait(std::chrono::milliseconds(20))) continue;
    Say("a second signal: stopping at once");
    cluster.RequestStop(StopKind::kNow);
  }
  cluster.supervisor().Stop(StopKind::kNow);
}

// From started workers to the last answer.
Status ServeCluster(EmbeddedCluster& cluster, const OpenedModel& model, const GatewayOptions& options, const GatewayFlags& flags, Signals& signals,
                    const Clock& clock) {
  Result<TextModelOptions> text_options = flags.ResolveText(model.file.path());
  if (!text_options.ok()) return text_options.status();
  Result<std::unique_ptr<TextModel>> text = CreateLlamaTextModel(*text_options);
  if (!text.ok()) return text.status();
  // Probes answer while the workers load.
  Result<std::unique_ptr<meshnet::Gateway>> gateway = meshnet::Gateway::Start(options, cluster.route(), **text, cluster.links(), clock);
  if (!gateway.ok()) return gateway.status();
  bool stopped = false;
  Status ready = cluster.WaitReady([&signals, &stopped] { return stopped = signals.Wait(Duration(0)).has_value(); });
  if (!ready.ok()) {
    (*gateway)->Stop();
    return stopped ? OkStatus() : ready;
  }
  Foundation foundation;
  foundation.failure = [&cluster] { return cluster.supervisor().failure(); };
  foundation.abandon = [&cluster] { cluster.supervisor().RequestStop(StopKind::kNow); };
  return ServeUntilSignal(**gateway, options, signals, flags.drain_limit(), foundation);
}

Status ServeModel(const ServeWish& wish, const WorkerFlags& worker_flags, const GatewayFlags& gateway_flags, const Arguments& arguments) {
  std::string listen = Address{Address::Kind::kTcp, wish.host, static_cast<uint16_t>(wish.port), ""}.Text();
  GatewayOptions options = gateway_flags.Resolve(listen, wish.insecure);
  Status address = meshnet::Gateway::CheckOptions(options);
  if (!address.ok()) return address;
  // Settings are judged before a large file is touched.
  Result<WorkerSettings> settings = worker_flags.Resolve(arguments, {}, 0);
  if (!settings.ok()) return settings.status();
  Result<OpenedModel> model = OpenWholeModel(wish.model_path);
  if (!model.ok()) return model.status();
  settings = worker_flags.Resolve(arguments, {}, model->shape.context_length);
  if (!settings.ok()) return settings.status();
  Result<ClusterPlan> plan = PlanCluster(*model, wish.split, *settings, 0);
  if (!plan.ok()) return plan.status();

  Result<ShardFiles> files = EnsureShardFiles(*model, plan->ranges);
  if (!files.ok()) return files.status();

  // Until here a signal just ends us: there is nothing to take down yet.
  Signals signals;
  SystemClock clock;
  SupervisorOptions supervision;
  supervision.ready_limit = std::chrono::seconds(wish.start_seconds);
  supervision.silence_limit = std::chrono::seconds(wish.silence_seconds);
  // The cache may be emptied at any time: it costs time only.
  supervision.restore = [&](size_t stage) { return EnsureShardFiles(*model, {plan->ranges[stage]}).status(); };
  Result<std::unique_ptr<EmbeddedCluster>> cluster = EmbeddedCluster::Launch(*plan, std::move(*files), supervision, clock);
  if (!cluster.ok()) return cluster.status();
  Status served = ServeCluster(**cluster, *model, options, gateway_flags, signals, clock);
  StopWorkers(**cluster, signals);
  return served;
}

}  // namespace

int Serve(int argc, char** argv) {
  ServeWish wish;
  WorkerFlags worker_flags;
  GatewayFlags gateway_flags;
  SplitFlags split_flags;
  Arguments arguments("serve", "Cuts a model, starts its workers on this machine and an OpenAI gateway in front, and supervises them.");
  arguments.Positional("MODEL", &wish.model_path, "a GGUF, or any part of a split one");
  split_flags.AddTo(arguments);
  arguments.Text("--host", &wish.host, "address the gateway listens on");
  arguments.Number("-p,--port", &wish.port, 0, 65535, "its port; 0: any");
  arguments.Switch("--insecure", &wish.insecure, "allow clients off loopback without keys");
  arguments.Number("--start-timeout", &wish.start_seconds, 1, 86400, "seconds a worker may take to be ready");
  arguments.Number("--silence-timeout", &wish.silence_seconds, 0, 86400, "seconds until a worker that does not answer is started again; 0: never");
  worker_flags.AddTo(arguments);
  gateway_flags.AddTo(arguments);
  if (std::optional<int> code = arguments.Parse(argc, argv)) return *code;
  if (std::optional<int> code = split_flags.Resolve(arguments, &wish.split)) return *code;
  Result<Address> host = ParseAddress(wish.host, kGatewayPort);
  if (!host.ok() || host->kind != Address::Kind::kTcp) return arguments.Usage("--host " + wish.host + ": not a host name or address");
  wish.host = host->host;
  return Report(ServeModel(wish, worker_flags, gateway_flags, arguments));
}

}  // namespace meshnet::cli
