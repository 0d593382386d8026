#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/system_clock.h"
#include "cli/arguments.h"
#include "cli/bench_target.h"
#include "cli/build_description.h"
#include "cli/embedded_cluster.h"
#include "cli/process_start.h"
#include "cli/report.h"
#include "cli/split_flags.h"
#include "cli/system_signals.h"
#include "cli/verbs.h"
#include "gateway/gateway.h"
#include "text/llama/llama_text_model.h"

namespace meshnet::cli {
namespace {

using nlohmann::ordered_json;

struct BenchWish {
  std::string model_path;
  SplitWish split;
  std::vector<uint32_t> sessions = {1};
  uint32_t prompt = 256, generated = 64, repetitions = 3;
  bool http = false, exact = false, json = false;
};

// "AMD EPYC …, 2 threads".
std::string Machine() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) {
      return line.substr(colon + 2) + ", " + std::to_string(std::thread::hardware_concurrency()) + " logical cores";
    }
  }
  return "unknown";
}

// Everything that is measured, and what it stands on.
struct Setup {
  std::vector<std::unique_ptr<EmbeddedCluster>> clusters;
  std::unique_ptr<TextModel> text;
  std::unique_ptr<meshnet::Gateway> gateway;
  std::vector<std::unique_ptr<BenchTarget>> targets;
  uint32_t threads = 0;
};

Result<EmbeddedCluster*> AddCluster(Setup& setup, const OpenedModel& model, const BenchWish& wish, WorkerSettings settings, NumericsMode numerics,
                                    Signals& signals, const Clock& clock) {
  settings.engine.numerics = numerics;
  Result<ClusterPlan> plan = PlanCluster(model, wish.split, settings, model.shape.weight_bytes);
  if (!plan.ok()) return plan.status();
  Result<ShardFiles> files = EnsureShardFiles(model, plan->ranges);
  if (!files.ok()) return files.status();
  Result<std::unique_ptr<EmbeddedCluster>> cluster = EmbeddedCluster::Launch(*plan, std::move(*files), SupervisorOptions(), clock);
  if (!cluster.ok()) return cluster.status();
  setup.clusters.push_back(std::move(*cluster));
  Status ready = setup.clusters.back()->WaitReady([&signals] { return signals.Wait(Duration(0)).has_value(); });
  if (!ready.ok()) return ready;
  return setup.clusters.back().get();
}

Status AddGateway(Setup& setup, EmbeddedCluster& cluster, const OpenedModel& model, const Clock& clock) {
  Result<std::unique_ptr<TextModel>> text = CreateLlamaTextModel({model.file.path(), ""});
  if (!text.ok()) return text.status();
  setup.text = std::move(*text);
  GatewayOptions options;
  options.listen = "127.0.0.1:0";
  options.queue_max = 100000;
  Result<std::unique_ptr<meshnet::Gateway>> gateway = meshnet::Gateway::Start(options, cluster.route(), *setup.text, cluster.links(), clock);
  if (!gateway.ok()) return gateway.status();
  setup.gateway = std::move(*gateway);
  setup.targets.push_back(CreateHttpTarget("meshnet-http", setup.gateway->address(), clock, model.shape.vocabulary_size));
  return OkStatus();
}

Status MakeTargets(Setup& setup, const OpenedModel& model, const BenchWish& wish, const WorkerSettings& settings, Signals& signals, const Clock& clock) {
  Result<std::unique_ptr<BenchTarget>> single = CreatePlainTarget("single", model.file.path(), settings.engine, clock);
  if (!single.ok()) return single.status();
  Result<EmbeddedCluster*> cluster = AddCluster(setup, model, wish, settings, settings.engine.numerics, signals, clock);
  if (!cluster.ok()) return cluster.status();
  if (std::shared_ptr<const Route::View> view = (*cluster)->route().view()) setup.threads = view->stages.front().description.numerics.threads;
  setup.targets.push_back(CreateRouteTarget("meshnet", (*cluster)->route(), clock, model.shape.vocabulary_size));
  if (wish.http) {
    Status gateway = AddGateway(setup, **cluster, model, clock);
    if (!gateway.ok()) return gateway;
  }
  setup.targets.push_back(std::move(*single));
  if (!wish.exact) return OkStatus();
  Result<EmbeddedCluster*> exact = AddCluster(setup, model, wish, settings, NumericsMode::kExact, signals, clock);
  if (!exact.ok()) return exact.status();
  setup.targets.push_back(CreateRouteTarget("meshnet-exact", (*exact)->route(), clock, model.shape.vocabulary_size));
  return OkStatus();
}

// All targets in turn within each round, so that whatever else the machine does slows them alike.
Result<std::vector<BenchRow>> Measure(Setup& setup, const BenchWish& wish, Signals& signals) {
  std::vector<BenchRow> rows;
  ProgressLine progress("measuring:");
  uint32_t number = 0;
  for (uint32_t sessions : wish.sessions) {
    BurstShape shape{sessions, wish.prompt, wish.generated, 0};
    std::vector<std::vector<BurstTimes>> bursts(setup.targets.size());
    for (uint32_t round = 0; round <= wish.repetitions; ++round) {
      shape.number = number++;
      for (size_t i = 0; i < setup.targets.size(); ++i) {
        if (signals.Wait(Duration(0))) return Failure("stopped");
        progress.UpdateText(std::to_string(sessions) + " sessions, round " + std::to_string(round) + ", " + setup.targets[i]->name());
        BurstShape one = shape;
        if (round == 0) one.generated_tokens = std::min(2u, shape.generated_tokens);  // warms up, is not counted
        Result<BurstTimes> burst = setup.targets[i]->Burst(one);
        if (!burst.ok()) return burst.status();
        if (round > 0) bursts[i].push_back(std::move(*burst));
      }
    }
    for (size_t i = 0; i < setup.targets.size(); ++i) {
      for (BenchRow& row : MakeRows(setup.targets[i]->name(), setup.threads, shape, bursts[i])) rows.push_back(std::move(row));
    }
  }
  return rows;
}

// Names of all ratios: each target against the plain context, and what `exact` costs against `fast`.
std::vector<BenchRatio> AllRatios(const std::vector<BenchRow>& rows, const Setup& setup) {
  std::vector<BenchRatio> all;
  auto add = [&all, &rows](const std::string& target, const std::string& base) {
    for (const BenchRatio& ratio : MakeRatios(rows, target, base)) all.push_back({target + "/" + base + " " + ratio.name, ratio.ratio});
  };
  for (const std::unique_ptr<BenchTarget>& target : setup.targets) {
    if (target->name() != "single") add(target->name(), "single");
  }
  add("meshnet-exact", "meshnet");
  return all;
}

void PrintJson(const std::vector<BenchRow>& rows, const std::vector<BenchRatio>& ratios) {
  ordered_json runs = ordered_json::array(), by_name = ordered_json::object();
  for (const BenchRow& row : rows) {
    auto optional = [](double value) { return value > 0 ? ordered_json(value) : ordered_json(nullptr); };
    runs.push_back({{"target", row.target}, {"test", row.test}, {"threads", row.threads}, {"sessions", row.sessions},
                    {"tokens_per_second", row.tokens_per_second}, {"ttft_seconds_p50", optional(row.first_token_seconds_p50)},
                    {"tpot_seconds_p50", optional(row.gap_seconds_p50)}, {"tpot_seconds_p99", optional(row.gap_seconds_p99)}});
  }
  for (const BenchRatio& ratio : ratios) by_name[ratio.name] = ratio.ratio;
  Print(ordered_json({{"machine", Machine()}, {"commit", BuildCommit()}, {"runs", runs}, {"ratios", by_name}}).dump(2) + "\n");
}

void PrintText(const std::vector<BenchRow>& rows, const std::vector<BenchRatio>& ratios) {
  TextTable table({"target", "test", "sessions", "threads", "t/s", "TTFT ms", "TPOT ms p50", "p99"});
  for (const BenchRow& row : rows) {
    auto milliseconds = [](double seconds) { return seconds > 0 ? Decimal(seconds * 1000, 2) : std::string("-"); };
    table.Add({row.target, row.test, std::to_string(row.sessions), std::to_string(row.threads), Decimal(row.tokens_per_second, 2),
               milliseconds(row.first_token_seconds_p50), milliseconds(row.gap_seconds_p50), milliseconds(row.gap_seconds_p99)});
  }
  TextTable shares({"ratio of tokens a second", "median"});
  for (const BenchRatio& ratio : ratios) shares.Add({ratio.name, Decimal(ratio.ratio, 3)});
  Print(Machine() + ", commit " + BuildCommit() + "\n\n" + table.Format() + "\n" + shares.Format());
}

int BenchModel(const BenchWish& wish, const WorkerFlags& flags, const Arguments& arguments) {
  Result<OpenedModel> model = OpenWholeModel(wish.model_path);
  if (!model.ok()) return Report(model.status());
  uint32_t context = (wish.prompt + wish.generated + 255) / 256 * 256;
  WorkerDefaults defaults{*std::max_element(wish.sessions.begin(), wish.sessions.end()), context, 0, NumericsMode::kFast};
  Result<WorkerSettings> settings = flags.Resolve(arguments, defaults, 0);
  if (!settings.ok()) return Report(settings.status());
  LogOnlyWarnings();
  Signals signals;
  SystemClock clock;
  Setup setup;
  Status made = MakeTargets(setup, *model, wish, *settings, signals, clock);
  if (!made.ok()) return Report(made);
  Result<std::vector<BenchRow>> rows = Measure(setup, wish, signals);
  if (setup.gateway) setup.gateway->Stop();
  if (!rows.ok()) return Report(rows.status());
  std::vector<BenchRatio> ratios = AllRatios(*rows, setup);
  wish.json ? PrintJson(*rows, ratios) : PrintText(*rows, ratios);
  return 0;
}

}  // namespace

int Bench(int argc, char** argv) {
  BenchWish wish;
  WorkerFlags flags;
  SplitFlags split_flags;
  Arguments arguments("bench", "Speed through worker processes and through one plain llama.cpp context with the same threads, measured in turn.");
  arguments.Positional("MODEL", &wish.model_path, "a GGUF, or any part of a split one");
  split_flags.AddTo(arguments);
  arguments.NumberList("--sessions", &wish.sessions, "answers at once, e.g. 1,16,64");
  arguments.Number("-p,--prompt-tokens", &wish.prompt, 1, 1000000, "tokens of each prompt");
  arguments.Number("-n,--generated-tokens", &wish.generated, 1, 1000000, "tokens of each answer");
  arguments.Number("-r,--repetitions", &wish.repetitions, 1, 1000, "rounds that are counted, after one that is not");
  arguments.Switch("--http", &wish.http, "measure through an HTTP gateway too");
  arguments.Switch("--exact", &wish.exact, "measure numerics exact too: what it costs");
  arguments.Switch("--json", &wish.json, "one JSON object on stdout");
  flags.AddTo(arguments);
  if (std::optional<int> code = arguments.Parse(argc, argv)) return *code;
  if (std::optional<int> code = split_flags.Resolve(arguments, &wish.split)) return *code;
  for (uint32_t sessions : wish.sessions) {
    if (sessions == 0 || sessions > 256) return arguments.Usage("--sessions: 1 to 256 at once");
  }
  return BenchModel(wish, flags, arguments);
}

}  // namespace meshnet::cli
