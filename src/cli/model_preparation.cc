#include "cli/model_preparation.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/cache_folder.h"
#include "cli/report.h"
#include "cli/split_choice.h"
#include "gguf/architecture_table.h"
#include "gguf/split_name.h"

namespace meshnet::cli {
namespace {

namespace fs = std::filesystem;

std::string Stem(const std::string& path) {
  std::optional<gguf::SplitName> split = gguf::ParseSplitName(path);
  return split ? fs::path(split->prefix).filename().string() : fs::path(path).stem().string();
}

// Held while shards of one model are cut, so that two processes do not do the same work. Freed by the kernel when its holder dies.
class CutLock {
 public:
  explicit CutLock(const std::string& folder) : fd_(open((folder + "/cut.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
    if (fd_ < 0) return;
    if (flock(fd_, LOCK_EX | LOCK_NB) == 0) return;
    Say("waiting for another process that cuts the same model");
    while (flock(fd_, LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  ~CutLock() {
    if (fd_ >= 0) close(fd_);
  }
  CutLock(const CutLock&) = delete;
  CutLock& operator=(const CutLock&) = delete;

 private:
  int fd_;
};

// Whether the file is this very shard, by its header and by the digests of its tensors.
bool IsUsable(const std::string& path, LayerRange range, const gguf::Manifest& manifest) {
  if (access(path.c_str(), F_OK) != 0) return false;
  Result<gguf::ModelFile> file = gguf::ModelFile::Open(path);
  if (!file.ok()) return false;
  Result<std::optional<gguf::ShardIdentity>> identity = gguf::ReadShardIdentity(*file);
  if (!identity.ok() || !identity->has_value()) return false;
  const gguf::ShardIdentity& found = **identity;
  if (found.model_root != manifest.model_root || found.range != range || found.rules_version != gguf::kRulesVersion) return false;
  ProgressLine progress("checking " + path);
  return gguf::VerifyShardIdentity(*file, found, [&progress](uint64_t done, uint64_t total) { progress.Update(done, total); }).ok();
}

Result<std::string> EnsureShardFile(const OpenedModel& model, LayerRange range, const gguf::Manifest& manifest, const std::string& folder) {
  Result<gguf::ShardPlan> plan = gguf::PlanShard(model.file, model.shape, range);
  if (!plan.ok()) return plan.status();
  std::string path = folder + "/layers-" + std::to_string(range.begin) + "-" + std::to_string(range.end) + ".gguf";
  if (IsUsable(path, range, manifest)) return path;
  ProgressLine progress("cutting " + range.Text() + " of " + model.shape.name);
  Result<gguf::WrittenShard> written = gguf::WriteShard(model.file, *plan, manifest, path, gguf::Overwrite::kForce,
                                                        [&progress](uint64_t done, uint64_t total) { progress.Update(done, total); });
  if (!written.ok()) return written.status();
  return path;
}

}  // namespace

std::optional<LayerRange> ParseLayerRange(const std::string& text) {
  size_t colon = text.find(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == text.size() || text.size() > 20) return std::nullopt;
  if (text.find_first_not_of("0123456789:") != std::string::npos || text.find(':', colon + 1) != std::string::npos) return std::nullopt;
  unsigned long begin = std::strtoul(text.c_str(), nullptr, 10), end = std::strtoul(text.c_str() + colon + 1, nullptr, 10);
  if (begin >= end || end > UINT32_MAX) return std::nullopt;
  return LayerRange{static_cast<uint32_t>(begin), static_cast<uint32_t>(end)};
}

Result<OpenedModel> OpenWholeModel(const std::string& path) {
  Result<gguf::ModelFile> file = gguf::ModelFile::Open(path);
  if (!file.ok()) return file.status();
  Result<std::optional<gguf::ShardIdentity>> identity = gguf::ReadShardIdentity(*file);
  if (!identity.ok()) return identity.status();
  if (identity->has_value()) {
    return Refused(path + " is a shard, layers " + (*identity)->range.Text() + " of " + (*identity)->model_name +
                   "; name the whole model, or serve the shard with `meshnet worker --shard`");
  }
  Result<gguf::ModelShape> shape = gguf::ReadModelShape(*file);
  if (!shape.ok()) return shape.status();
  return OpenedModel{std::move(*file), std::move(*shape)};
}

Result<std::vector<LayerRange>> ChooseSplit(const OpenedModel& model, const SplitWish& wish) {
  if (wish.cuts.empty()) return ChooseRanges(model.shape, gguf::FindLegalCuts(model.file, model.shape), wish.shards, OutputBytes(model.file));
  Result<std::vector<LayerRange>> ranges = gguf::RangesOfCuts(model.shape, wish.cuts);
  if (!ranges.ok()) return ranges.status();
  for (LayerRange range : *ranges) {
    Result<gguf::ShardPlan> plan = gguf::PlanShard(model.file, model.shape, range);
    if (!plan.ok()) return plan.status();
  }
  return ranges;
}

Result<MemoryNeed> PredictMemory(const OpenedModel& model, const gguf::ShardPlan& plan, const WorkerSettings& settings) {
  Result<EngineSettings> engine = settings.Resolved(plan.range, model.shape.layer_count);
  if (!engine.ok()) return engine.status();
  Result<plan::KvEstimate> kv = plan::EstimateKv(model.shape, plan.range, KvSettingsOf(*engine));
  if (!kv.ok()) return kv.status();
  const gguf::ModelShape& shape = model.shape;
  return NeedOf({plan.range, shape.layer_count, shape.boundary_width, shape.vocabulary_size, plan.bytes, plan.hole_bytes}, *engine, *kv);
}

std::string ShardFileName(const std::string& model_path, LayerRange range) {
  return Stem(model_path) + "-" + std::to_string(range.begin) + "-" + std::to_string(range.end) + ".gguf";
}

Result<ShardFiles> EnsureShardFiles(const OpenedModel& model, const std::vector<LayerRange>& ranges) {
  Result<gguf::Manifest> manifest = [&model] {
    ProgressLine progress("hashing " + model.shape.name);
    return gguf::BuildManifest(model.file, [&progress](uint64_t done, uint64_t total) { progress.Update(done, total); });
  }();
  if (!manifest.ok()) return manifest.status();

  ShardFiles files;
  Result<std::string> folder = CacheFolder("shards/" + manifest->model_root.Hex());
  if (!folder.ok()) {
    Say(folder.status().message() + "; the shards are cut into a temporary folder this time");
    Result<PrivateFolder> temporary = PrivateFolder::Create();
    if (!temporary.ok()) return temporary.status();
    folder = temporary->path();
    files.temporary.emplace(std::move(*temporary));
  }
  CutLock lock(*folder);
  for (LayerRange range : ranges) {
    Result<std::string> path = EnsureShardFile(model, range, *manifest, *folder);
    if (!path.ok()) return path.status();
    files.paths.push_back(*path);
  }
  return files;
}

}  // namespace meshnet::cli
