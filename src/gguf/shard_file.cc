#include "gguf/shard_file.h"

#include <sys/stat.h>

#include <cstring>
#include <unordered_map>

#include "base/sha256.h"
#include "gguf/gguf_writer.h"
#include "gguf/header_file.h"
#include "gguf/manifest.h"
#include "gguf/open_parts.h"
#include "gguf/output_file.h"
#include "gguf/region_hash.h"
#include "gguf/shard_header.h"
#include "gguf/shard_keys.h"
#include "gguf/split_name.h"

namespace meshnet::gguf {
namespace {

Status CheckOutput(const ModelFile& file, const std::string& out_path, Overwrite overwrite) {
  if (out_path.empty() || out_path.back() == '/') return BadConfiguration("the output needs a file name, not \"" + out_path + "\"");
  if (ParseSplitName(out_path).has_value()) {
    return BadConfiguration(out_path + ": looks like a part of a split model; give the shard another name");
  }
  struct stat out{};
  if (stat(out_path.c_str(), &out) == 0) {
    for (const Part& part : file.parts()) {
      struct stat in{};
      if (stat(part.path.c_str(), &in) == 0 && in.st_dev == out.st_dev && in.st_ino == out.st_ino) {
        return Refused(out_path + ": is the same file as the input " + part.path + "; a model is never written over");
      }
    }
    if (S_ISDIR(out.st_mode)) return BadConfiguration(out_path + ": is a folder");
  }
  if (lstat(out_path.c_str(), &out) == 0 && overwrite == Overwrite::kRefuse) {
    return Failure(out_path + ": exists already; name another file, or replace it with --force");
  }
  return OkStatus();
}

// The manifest's rows of the tensors that the shard holds. They must be of this very model.
Result<std::vector<std::string>> RowsOfPlan(const ModelFile& file, const ShardPlan& plan, const Manifest& manifest) {
  const auto known = TensorRows(manifest.text);
  if (!known.has_value()) return BadModel(file.path() + ": its manifest cannot be read");
  std::vector<std::string> rows;
  for (const PlannedTensor& tensor : plan.tensors) {
    if (tensor.hole) continue;
    const auto row = known->find(tensor.original_name);
    const TensorInfo* source = file.FindTensor(tensor.original_name);
    // All of a row but its digest (64 digits and a newline) follows from the header.
    std::string head = TensorRow(tensor.original_name, tensor.type, tensor.dims, {});
    head.resize(head.size() - 65);
    if (source == nullptr || row == known->end() || !row->second.starts_with(head)) {
      return BadModel(file.path() + ": tensor \"" + Printable(tensor.original_name) + "\" is not the one of the manifest");
    }
    rows.push_back(row->second);
  }
  return rows;
}

Status CopyTensors(const ModelFile& file, const ShardPlan& plan, const EncodedHeader& header, OutputFile* out, const Progress& progress) {
  OpenParts inputs;
  if (Status status = inputs.Open(file.parts()); !status.ok()) return status;
  const uint64_t total = plan.bytes - plan.hole_bytes;
  uint64_t done = 0;
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    const PlannedTensor& tensor = plan.tensors[i];
    if (tensor.hole) continue;
    const TensorInfo* source = file.FindTensor(tensor.original_name);
    // In steps, so that progress shows and a cancelled copy of a huge tensor does not hang in the kernel.
    static constexpr uint64_t kStepBytes = 64 << 20;
    for (uint64_t at = 0; at < tensor.bytes; at += kStepBytes) {
      const uint64_t step = std::min(kStepBytes, tensor.bytes - at);
      if (Status status = out->CopyFrom(inputs[source->part], source->offset + at, header.offsets[i] + at, step); !status.ok()) return status;
      done += step;
      if (progress) progress(std::min(done, total), total);
    }
  }
  return OkStatus();
}

}  // namespace

Result<Manifest> BuildManifest(const ModelFile& file, const Progress& progress) {
  if (file.Find(kShardRulesKey) != nullptr) return Refused(file.path() + ": is a shard; its manifest is the one it was cut with");
  std::vector<Region> regions;
  for (const TensorInfo& tensor : file.tensors()) regions.push_back({tensor.part, tensor.offset, tensor.bytes, false});
  Result<std::vector<Sha256Digest>> digests = HashRegions(file.parts(), regions, progress);
  if (!digests.ok()) return digests.status();
  Manifest manifest;
  manifest.text = ManifestText(file, *digests);
  manifest.model_root = Sha256().Update(manifest.text).Digest();
  return manifest;
}

Result<WrittenShard> WriteShard(const ModelFile& file, const ShardPlan& plan, const Manifest& manifest, const std::string& out_path,
                                Overwrite overwrite, const Progress& progress) {
  if (Status status = CheckOutput(file, out_path, overwrite); !status.ok()) return status;
  Result<std::vector<std::string>> rows = RowsOfPlan(file, plan, manifest);
  if (!rows.ok()) return rows.status();
  WrittenShard shard;
  shard.path = out_path;
  shard.range = plan.range;
  shard.tensor_count = plan.tensors.size();
  shard.hole_bytes = plan.hole_bytes;
  shard.range_digest = RangeDigest(std::move(rows).value());

  const EncodedHeader header = EncodeShardHeader(plan, manifest, shard.range_digest);
  shard.bytes = header.file_bytes;
  Result<OutputFile> out = OutputFile::Create(out_path, header.file_bytes - plan.hole_bytes, header.file_bytes, Readers::kAsUmask);
  if (!out.ok()) return out.status();
  Status status = out->Write(0, header.bytes.data(), header.bytes.size());
  if (status.ok()) status = CopyTensors(file, plan, header, &*out, progress);
  if (status.ok()) status = out->Resize(header.file_bytes);
  if (status.ok()) {
    status = out->Publish(overwrite == Overwrite::kForce ? OutputFile::Existing::kReplace : OutputFile::Existing::kError);
  }
  if (!status.ok()) return status;
  return shard;
}

}  // namespace meshnet::gguf
