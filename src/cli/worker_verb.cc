#include <sys/types.h>

#include "cli/arguments.h"
#include "cli/child_process.h"
#include "cli/explain_budget.h"
#include "cli/model_preparation.h"
#include "cli/report.h"
#include "cli/shard_probe.h"
#include "cli/system_memory.h"
#include "cli/tls_flags.h"
#include "cli/verbs.h"
#include "cli/worker_flags.h"
#include "engine/llama/llama_library.h"
#include "engine/llama/llama_shard_engine.h"
#include "wire/address.h"
#include "worker/shard_worker.h"

namespace meshnet::cli {
namespace {

struct WorkerWish {
  std::string shard_path, model_path, layers;
  ShardWorkerOptions options;
  int32_t parent_pid = 0;
  bool probe = false;
  bool explain_budget = false;

  bool is_child() const { return parent_pid != 0; }
};

// The file to serve, read and checked.
struct OpenedShard {
  gguf::ModelFile file;
  gguf::ModelShape shape;  // of the shard itself: its layers only
  gguf::ShardIdentity identity;
};

Result<OpenedShard> OpenShard(const std::string& path) {
  Result<gguf::ModelFile> file = gguf::ModelFile::Open(path);
  if (!file.ok()) return file.status();
  Result<std::optional<gguf::ShardIdentity>> identity = gguf::ReadShardIdentity(*file);
  if (!identity.ok()) return identity.status();
  Result<gguf::ModelShape> shape = gguf::ReadModelShape(*file);
  if (!shape.ok()) return shape.status();
  if (!identity->has_value()) {
    return BadModel(path + " is a whole model, not a shard; use --model " + path + " --layers 0:" + std::to_string(shape->layer_count) +
                    ", or cut it with `meshnet cut`");
  }
  return OpenedShard{std::move(*file), std::move(*shape), **identity};
}

Result<LayerRange> RangeOf(const OpenedModel& model, const std::string& layers) {
  std::optional<LayerRange> range = ParseLayerRange(layers);
  if (range && range->end <= model.shape.layer_count) return *range;
  return BadConfiguration("--layers " + layers + ": " + model.shape.name + " has " + std::to_string(model.shape.layer_count) + " layers");
}

// The shard file of `--model FILE --layers A:B`, cut into the cache folder.
Result<ShardFiles> CutForWorker(const std::string& model_path, const std::string& layers) {
  Result<OpenedModel> model = OpenWholeModel(model_path);
  if (!model.ok()) return model.status();
  Result<LayerRange> range = RangeOf(*model, layers);
  if (!range.ok()) return range.status();
  return EnsureShardFiles(*model, {*range});
}

uint64_t HoleBytes(const OpenedShard& shard) {
  uint64_t bytes = 0;
  for (const std::string& name : shard.identity.holes) {
    if (const gguf::TensorInfo* tensor = shard.file.FindTensor(name)) bytes += tensor->bytes;
  }
  return bytes;
}

ShardDescription Describe(const OpenedShard& shard, const plan::KvEstimate& kv) {
  const gguf::ShardIdentity& identity = shard.identity;
  ShardDescription description;
  description.model_root = identity.model_root;
  description.range_digest = identity.range_digest;
  description.model_name = identity.model_name;
  description.architecture = identity.architecture;
  description.layer_count = identity.layer_count;
  description.range = identity.range;
  description.boundary_width = identity.boundary_width;
  description.vocabulary_size = identity.vocabulary_size;
  description.truncation_class = shard.shape.truncation_class;
  description.window_tokens = shard.shape.window_tokens;
  description.kv_bytes_per_token = kv.bytes_per_token;
  description.kv_bytes_predicted = kv.bytes;
  description.weight_bytes = shard.shape.weight_bytes;
  description.hole_bytes = HoleBytes(shard);
  return description;
}

std::string NameOf(LayerRange range, const std::string& model) { return "layers " + range.Text() + " of " + model; }

Status Explain(BudgetQuestion question) {
  Result<std::optional<uint64_t>> available = AvailableMemory();
  if (!available.ok()) return available.status();
  question.available_bytes = *available;
  Print(ExplainBudget(question));
  return CheckMemory(question.what, {question.need});
}

// --explain-budget of a range that need not be cut yet.
Status ExplainRange(const WorkerWish& wish, const WorkerFlags& flags, const Arguments& arguments) {
  Result<OpenedModel> model = OpenWholeModel(wish.model_path);
  if (!model.ok()) return model.status();
  Result<LayerRange> range = RangeOf(*model, wish.layers);
  if (!range.ok()) return range.status();
  Result<gguf::ShardPlan> plan = gguf::PlanShard(model->file, model->shape, *range);
  if (!plan.ok()) return plan.status();
  Result<WorkerSettings> settings = flags.Resolve(arguments, {}, model->shape.context_length);
  if (!settings.ok()) return settings.status();
  Result<EngineSettings> engine = settings->Resolved(*range, model->shape.layer_count);
  if (!engine.ok()) return engine.status();
  Result<MemoryNeed> need = PredictMemory(*model, *plan, *settings);
  if (!need.ok()) return need.status();
  return Explain({NameOf(*range, model->shape.name), *settings, *engine, *need, {}});
}

Status Probe(const std::string& path, const WorkerSettings& settings, EngineOptions engine, uint64_t shard_bytes) {
  std::vector<std::string> arguments = {"worker", "--probe", "--shard", path};
  std::vector<std::string> flags = settings.ToArguments();
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  engine.shard_path = path;
  return ProbeInChild("/proc/self/exe", arguments, engine, ProbeLimit(shard_bytes));
}

Status ServeShard(const WorkerWish& wish, const WorkerFlags& flags, const Arguments& arguments, const std::string& path) {
  Result<OpenedShard> shard = OpenShard(path);
  if (!shard.ok()) return shard.status();
  Result<WorkerSettings> settings = flags.Resolve(arguments, {}, shard->shape.context_length);
  if (!settings.ok()) return settings.status();
  EngineOptions options_of_engine = settings->engine;
  options_of_engine.shard_path = path;
  if (wish.probe) {
    LlamaErrorsToStderr();
    return ProbeShard(options_of_engine);
  }

  Result<EngineSettings> engine = settings->Resolved(shard->identity.range, shard->identity.layer_count);
  if (!engine.ok()) return engine.status();
  Result<plan::KvEstimate> kv = plan::EstimateKv(shard->shape, {0, shard->shape.layer_count}, KvSettingsOf(*engine));
  if (!kv.ok()) return kv.status();
  const std::string what = NameOf(shard->identity.range, shard->identity.model_name);
  const gguf::ShardIdentity& identity = shard->identity;
  const MemoryNeed need = NeedOf(
      {identity.range, identity.layer_count, identity.boundary_width, identity.vocabulary_size, shard->shape.weight_bytes, HoleBytes(*shard)}, *engine, *kv);
  if (wish.explain_budget) return Explain({what, *settings, *engine, need, {}});
  if (!wish.is_child()) {  // whoever starts several workers has counted them all
    Status memory = CheckMemory(what, {need});
    if (!memory.ok()) return memory;
  }
  Status verified = [&shard, &path] {
    ProgressLine progress("checking " + path);
    return gguf::VerifyShardIdentity(shard->file, shard->identity, [&progress](uint64_t done, uint64_t total) { progress.Update(done, total); });
  }();
  if (!verified.ok()) return verified;
  Status probed = Probe(path, *settings, options_of_engine, shard->shape.weight_bytes);
  if (!probed.ok()) return probed;

  ShardWorkerOptions options = wish.options;
  options.hot_kv = settings->hot_kv;
  return RunShardWorker(options, Describe(*shard, *kv), [&] { return CreateLlamaShardEngine(options_of_engine); });
}

int RunWorker(const WorkerWish& wish, const WorkerFlags& flags, const Arguments& arguments) {
  if (!wish.probe && !wish.explain_budget) {
    Status listen = CheckListenAddress(wish.options.listen, wish.options.tls);
    if (!listen.ok()) return Report(listen);
  }
  if (!wish.shard_path.empty()) return Report(ServeShard(wish, flags, arguments, wish.shard_path));
  if (wish.explain_budget) return Report(ExplainRange(wish, flags, arguments));
  Result<ShardFiles> files = CutForWorker(wish.model_path, wish.layers);
  if (!files.ok()) return Report(files.status());
  return Report(ServeShard(wish, flags, arguments, files->paths.front()));
}

}  // namespace

int Worker(int argc, char** argv) {
  WorkerWish wish;
  Arguments arguments("worker", "One shard worker: loads a layer range and serves it over gRPC until SIGTERM.");
  WorkerFlags flags;
  arguments.Text("--shard", &wish.shard_path, "a shard file written by `meshnet cut`");
  arguments.Text("--model", &wish.model_path, "a whole model; its range --layers is cut into the cache folder first");
  arguments.Text("--layers", &wish.layers, "range A:B of --model, half open");
  arguments.Text("--listen", &wish.options.listen, "host:port, [::1]:port or unix:/path; port 0: any");
  AddTlsFlags(arguments, &wish.options.tls);
  arguments.Switch("--insecure", &wish.options.tls.insecure, "allow plaintext off loopback");
  arguments.Text("--turn-lock", &wish.options.turn_path, "file whose lock is this host's one engine turn: the same for all workers of a host");
  flags.AddTo(arguments);
  arguments.Switch("--explain-budget", &wish.explain_budget,
                   "only print how the hot KV settings and the model come to sequences, cells and bytes, and whether they fit");
  arguments.HiddenInteger("--lifeline-fd", &wish.options.lifeline_fd);
  arguments.HiddenInteger("--ready-fd", &wish.options.ready_fd);
  arguments.HiddenInteger("--parent-pid", &wish.parent_pid);
  arguments.HiddenSwitch("--probe", &wish.probe);
  if (std::optional<int> code = arguments.Parse(argc, argv)) return *code;
  if (wish.is_child() && !DieWithParent(static_cast<pid_t>(wish.parent_pid))) return static_cast<int>(StatusCode::kFailure);

  if (wish.shard_path.empty() == wish.model_path.empty()) return arguments.Usage("one of --shard FILE and --model FILE --layers A:B is needed");
  if (wish.model_path.empty() != wish.layers.empty()) return arguments.Usage("--model and --layers go together");
  if (!wish.layers.empty() && !ParseLayerRange(wish.layers)) return arguments.Usage("--layers " + wish.layers + ": not a range A:B with A below B");
  Result<Address> address = ParseAddress(wish.options.listen, kWorkerPort);
  if (!address.ok()) return arguments.Usage("--listen: " + address.status().message());
  return RunWorker(wish, flags, arguments);
}

}  // namespace meshnet::cli
