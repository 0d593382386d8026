#include <nlohmann/json.hpp>

#include "cli/arguments.h"
#include "cli/model_preparation.h"
#include "cli/report.h"
#include "cli/split_choice.h"
#include "cli/verbs.h"

namespace meshnet::cli {
namespace {

using nlohmann::ordered_json;

struct Inspected {
  gguf::ModelFile file;
  gguf::ModelShape shape;
  std::optional<gguf::ShardIdentity> shard;
  gguf::LegalCuts cuts;
  Sha256Digest model_root;
  uint64_t bytes = 0;
};

Result<Inspected> InspectFile(const std::string& path) {
  Result<gguf::ModelFile> file = gguf::ModelFile::Open(path);
  if (!file.ok()) return file.status();
  Result<gguf::ModelShape> shape = gguf::ReadModelShape(*file);
  if (!shape.ok()) return shape.status();
  Result<std::optional<gguf::ShardIdentity>> shard = gguf::ReadShardIdentity(*file);
  if (!shard.ok()) return shard.status();
  Inspected found{std::move(*file), std::move(*shape), std::move(*shard), {}, {}, 0};
  for (const gguf::Part& part : found.file.parts()) found.bytes += part.bytes;
  if (found.shard) {
    found.model_root = found.shard->model_root;
    found.cuts.reason = "a shard is not cut again; cut the model it came from";
    return found;
  }
  found.cuts = gguf::FindLegalCuts(found.file, found.shape);
  ProgressLine progress("hashing " + path);
  Result<gguf::Manifest> manifest =
      gguf::BuildManifest(found.file, [&progress](uint64_t done, uint64_t total) { progress.Update(done, total); });
  if (!manifest.ok()) return manifest.status();
  found.model_root = manifest->model_root;
  return found;
}

ordered_json ToJson(const Inspected& found) {
  const gguf::ModelShape& shape = found.shape;
  ordered_json files = ordered_json::array(), bytes_per_layer = ordered_json::array();
  for (const gguf::Part& part : found.file.parts()) files.push_back(part.path);
  for (const gguf::LayerShape& layer : shape.layers) bytes_per_layer.push_back(layer.weight_bytes);
  ordered_json shard = nullptr;
  if (found.shard) {
    shard = {{"layers", {found.shard->range.begin, found.shard->range.end}}, {"range_digest", found.shard->range_digest.Hex()}};
  }
  return {{"architecture", shape.architecture},
          {"layers", found.shard ? found.shard->layer_count : shape.layer_count},
          {"parameters", shape.parameters},
          {"tied", shape.tied},
          {"files", files},
          {"bytes", found.bytes},
          {"bytes_per_layer", bytes_per_layer},
          {"boundary_width", found.shard ? found.shard->boundary_width : shape.boundary_width},
          {"truncation_class", Name(shape.truncation_class)},
          {"cuts", {{"legal", found.cuts.cuts}, {"reason", found.cuts.reason}}},
          {"prediction_layers", shape.prediction_layers},
          {"model_root", found.model_root.Hex()},
          {"shard", shard}};
}

// "1-29" for runs, so that a model that can be cut anywhere takes one line.
std::string Runs(const std::vector<uint32_t>& cuts) {
  std::string text;
  for (size_t i = 0; i < cuts.size();) {
    size_t end = i;
    while (end + 1 < cuts.size() && cuts[end + 1] == cuts[end] + 1) ++end;
    if (!text.empty()) text += ", ";
    text += std::to_string(cuts[i]);
    if (end > i) text += "-" + std::to_string(cuts[end]);
    i = end + 1;
  }
  return text.empty() ? "none" : text;
}

std::string ToText(const Inspected& found, const plan::KvEstimate& kv, uint32_t context) {
  const gguf::ModelShape& shape = found.shape;
  uint64_t least = UINT64_MAX, most = 0;
  for (const gguf::LayerShape& layer : shape.layers) {
    least = std::min(least, layer.weight_bytes);
    most = std::max(most, layer.weight_bytes);
  }
  std::string text = shape.name + "\n";
  auto line = [&text](const std::string& name, const std::string& value) { text += "  " + name + std::string(18 - name.size(), ' ') + value + "\n"; };
  if (found.shard) line("shard", "layers " + found.shard->range.Text() + " of " + std::to_string(found.shard->layer_count));
  line("architecture", shape.architecture);
  line("layers", std::to_string(shape.layer_count) + (shape.prediction_layers > 0 ? " and " + std::to_string(shape.prediction_layers) + " prediction layers" : ""));
  line("parameters", std::to_string(shape.parameters));
  line("size", HumanBytes(found.bytes) + " in " + std::to_string(found.file.parts().size()) + (found.file.parts().size() == 1 ? " file" : " files"));
  if (!shape.layers.empty()) line("bytes per layer", least == most ? HumanBytes(least) : HumanBytes(least) + " to " + HumanBytes(most));
  line("output matrix", HumanBytes(OutputBytes(found.file)) + (shape.tied ? " (tied to the embedding)" : ""));
  line("boundary width", std::to_string(shape.boundary_width));
  line("context", std::to_string(shape.context_length) + " tokens trained");
  line("KV", HumanBytes(kv.bytes_per_token) + " a token, " + HumanBytes(kv.bytes) + " for one session of " + std::to_string(context) + " tokens");
  line("truncation class", Name(shape.truncation_class));
  line("legal cuts", Runs(found.cuts.cuts) + (found.cuts.reason.empty() ? "" : " (" + found.cuts.reason + ")"));
  line("model root", found.model_root.Hex());
  if (found.shard) line("range digest", found.shard->range_digest.Hex());
  return text;
}

}  // namespace

int Inspect(int argc, char** argv) {
  std::string path;
  bool json = false;
  Arguments arguments("inspect", "What a GGUF or shard is: architecture, layers, legal cuts, bytes per layer, identity.");
  WorkerFlags flags;
  arguments.Positional("FILE", &path, "a model, any part of a split one, or a shard");
  arguments.Switch("--json", &json, "one JSON object on stdout");
  flags.AddTo(arguments);
  if (std::optional<int> code = arguments.Parse(argc, argv)) return *code;

  Result<Inspected> found = InspectFile(path);
  if (!found.ok()) return Report(found.status());
  if (json) {
    Print(ToJson(*found).dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n");
    return 0;
  }
  Result<WorkerSettings> settings = flags.Resolve(arguments, {1, 4096, 0, NumericsMode::kFast}, found->shape.context_length);
  if (!settings.ok()) return Report(settings.status());
  const LayerRange own = {0, found->shape.layer_count};
  const std::optional<gguf::ShardIdentity>& shard = found->shard;
  Result<EngineSettings> engine = shard ? settings->Resolved(shard->range, shard->layer_count) : settings->Resolved(own, own.end);
  if (!engine.ok()) return Report(engine.status());
  Result<plan::KvEstimate> kv = plan::EstimateKv(found->shape, own, KvSettingsOf(*engine));
  if (!kv.ok()) return Report(kv.status());
  Print(ToText(*found, *kv, settings->hot_kv.context_tokens));
  return 0;
}

}  // namespace meshnet::cli
