#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "cli/arguments.h"
#include "cli/model_preparation.h"
#include "cli/report.h"
#include "cli/verbs.h"
#include "gguf/ggml_types.h"

namespace meshnet::cli {
namespace {

using nlohmann::ordered_json;

struct CutWish {
  std::string model_path, layers, out;
  uint32_t shards = 0;
  std::vector<uint32_t> cuts;
  bool dry_run = false, force = false, json = false;
};

struct PlannedCut {
  gguf::ShardPlan plan;
  MemoryNeed need;
  std::string path;
  uint64_t bytes = 0;  // of the file once written, else of the data
  uint64_t tensors = 0;
};

std::string OutputPath(const CutWish& wish, LayerRange range) {
  if (!wish.layers.empty()) return wish.out;
  return (wish.out.empty() ? "" : wish.out + "/") + ShardFileName(wish.model_path, range);
}

Result<std::vector<PlannedCut>> PlanCuts(const OpenedModel& model, const CutWish& wish, const WorkerSettings& settings) {
  std::vector<LayerRange> ranges;
  if (!wish.layers.empty()) {
    ranges = {*ParseLayerRange(wish.layers)};
    if (ranges[0].end > model.shape.layer_count) {
      return BadConfiguration("--layers " + wish.layers + ": " + model.shape.name + " has " + std::to_string(model.shape.layer_count) + " layers");
    }
  } else {
    Result<std::vector<LayerRange>> chosen = ChooseSplit(model, {wish.shards, wish.cuts});
    if (!chosen.ok()) return chosen.status();
    ranges = *chosen;
  }
  std::vector<PlannedCut> cuts;
  for (LayerRange range : ranges) {
    Result<gguf::ShardPlan> plan = gguf::PlanShard(model.file, model.shape, range);
    if (!plan.ok()) return plan.status();
    Result<MemoryNeed> need = PredictMemory(model, *plan, settings);
    if (!need.ok()) return need.status();
    uint64_t bytes = plan->bytes, tensors = plan->tensors.size();
    cuts.push_back({std::move(*plan), *need, OutputPath(wish, range), bytes, tensors});
  }
  return cuts;
}

std::string Dimensions(const std::vector<uint64_t>& dims) {
  std::string text;
  for (uint64_t dim : dims) text += (text.empty() ? "" : "x") + std::to_string(dim);
  return text;
}

void PrintDryRun(const std::vector<PlannedCut>& cuts, uint32_t context) {
  for (const PlannedCut& cut : cuts) {
    TextTable table({"tensor", "from", "type", "shape", "bytes"});
    for (const gguf::PlannedTensor& tensor : cut.plan.tensors) {
      const gguf::GgmlType* type = gguf::FindGgmlType(tensor.type);
      table.Add({tensor.name, tensor.original_name, type == nullptr ? std::to_string(tensor.type) : type->name, Dimensions(tensor.dims),
                 std::to_string(tensor.bytes) + (tensor.hole ? " hole" : "")});
    }
    Print("layers " + cut.plan.range.Text() + "\n" + table.Format() + "\n");
  }
  TextTable table({"layers", "tensors", "bytes", "holes", "KV a token", "KV", "memory", "file"});
  for (const PlannedCut& cut : cuts) {
    table.Add({cut.plan.range.Text(), std::to_string(cut.tensors), HumanBytes(cut.bytes), HumanBytes(cut.plan.hole_bytes),
               HumanBytes(cut.need.kv_bytes_per_token), HumanBytes(cut.need.kv_bytes), HumanBytes(cut.need.total()), cut.path});
  }
  Print(table.Format() + "KV and memory: at a context of " + std::to_string(context) + " tokens a session\n");
}

Status WriteAll(const OpenedModel& model, const gguf::Manifest& manifest, const CutWish& wish, std::vector<PlannedCut>& cuts) {
  if (wish.layers.empty() && !wish.out.empty() && mkdir(wish.out.c_str(), 0777) != 0 && errno != EEXIST) {
    return Failure("cannot make the folder " + wish.out + ": " + std::strerror(errno));
  }
  for (PlannedCut& cut : cuts) {
    ProgressLine progress("cutting " + cut.plan.range.Text() + " to " + cut.path);
    Result<gguf::WrittenShard> written =
        gguf::WriteShard(model.file, cut.plan, manifest, cut.path, wish.force ? gguf::Overwrite::kForce : gguf::Overwrite::kRefuse,
                         [&progress](uint64_t done, uint64_t total) { progress.Update(done, total); });
    if (!written.ok()) return written.status();
    cut.bytes = written->bytes;
    cut.tensors = written->tensor_count;
  }
  return OkStatus();
}

void PrintResult(const std::vector<PlannedCut>& cuts, const Sha256Digest& root, bool json) {
  ordered_json shards = ordered_json::array();
  TextTable table({"layers", "tensors", "bytes", "file"});
  for (const PlannedCut& cut : cuts) {
    shards.push_back({{"layers", {cut.plan.range.begin, cut.plan.range.end}}, {"file", cut.path}, {"bytes", cut.bytes},
                      {"tensors", cut.tensors}, {"hole_bytes", cut.plan.hole_bytes}});
    table.Add({cut.plan.range.Text(), std::to_string(cut.tensors), HumanBytes(cut.bytes), cut.path});
  }
  ordered_json whole = {{"model_root", root.Hex()}, {"shards", shards}};
  Print(json ? whole.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n" : table.Format());
}

int CutModel(const CutWish& wish, const WorkerFlags& flags, const Arguments& arguments) {
  Result<OpenedModel> model = OpenWholeModel(wish.model_path);
  if (!model.ok()) return Report(model.status());
  Result<WorkerSettings> settings = flags.Resolve(arguments, {}, model->shape.context_length);
  if (!settings.ok()) return Report(settings.status());
  Result<std::vector<PlannedCut>> cuts = PlanCuts(*model, wish, *settings);
  if (!cuts.ok()) return Report(cuts.status());
  if (wish.dry_run && !wish.json) {
    PrintDryRun(*cuts, settings->hot_kv.context_tokens);
    return 0;
  }
  Result<gguf::Manifest> manifest = [&model] {
    ProgressLine progress("hashing " + model->shape.name);
    return gguf::BuildManifest(model->file, [&progress](uint64_t done, uint64_t total) { progress.Update(done, total); });
  }();
  if (!manifest.ok()) return Report(manifest.status());
  if (!wish.dry_run) {
    Status written = WriteAll(*model, *manifest, wish, *cuts);
    if (!written.ok()) return Report(written);
  }
  PrintResult(*cuts, manifest->model_root, wish.json);
  return 0;
}

}  // namespace

int Cut(int argc, char** argv) {
  CutWish wish;
  Arguments arguments("cut", "Writes shards of a model: GGUF files that hold a contiguous range of its layers.");
  WorkerFlags flags;
  arguments.Positional("MODEL", &wish.model_path, "a GGUF, or any part of a split one");
  arguments.LocalText("--layers", &wish.layers, "one range A:B, half open; needs -o FILE");
  arguments.Number("--shards", &wish.shards, 1, 1024, "this many ranges of like weight");
  arguments.NumberList("--cuts", &wish.cuts, "ranges between these layers: 7,14 means [0,7) [7,14) [14,n)");
  arguments.LocalText("-o,--output", &wish.out, "file for --layers, folder otherwise");
  arguments.Switch("--dry-run", &wish.dry_run, "show tensors, bytes and memory; write nothing");
  arguments.Switch("--force", &wish.force, "replace files that exist");
  arguments.Switch("--json", &wish.json, "one JSON object on stdout");
  flags.AddTo(arguments);
  if (std::optional<int> code = arguments.Parse(argc, argv)) return *code;
  int ways = (wish.layers.empty() ? 0 : 1) + (wish.shards > 0 ? 1 : 0) + (wish.cuts.empty() ? 0 : 1);
  if (ways != 1) return arguments.Usage("one of --layers A:B, --shards N and --cuts A,B,... is needed");
  if (!wish.layers.empty() && !ParseLayerRange(wish.layers)) return arguments.Usage("--layers " + wish.layers + ": not a range A:B with A below B");
  if (wish.out.empty() && !wish.dry_run) return arguments.Usage("-o is needed: a file for --layers, a folder otherwise");
  return CutModel(wish, flags, arguments);
}

}  // namespace meshnet::cli
