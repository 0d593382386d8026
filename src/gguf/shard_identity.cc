#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <unordered_set>

#include "base/sha256.h"
#include "gguf/header_file.h"
#include "gguf/layer_name.h"
#include "gguf/manifest.h"
#include "gguf/region_hash.h"
#include "gguf/shard_file.h"
#include "gguf/shard_header.h"
#include "gguf/shard_keys.h"

namespace meshnet::gguf {
namespace {

Status NoShard(const ModelFile& file, const std::string& why) { return BadModel(file.path() + ": is a damaged shard: " + why); }

Status ReadNumber(const ModelFile& file, const char* key, uint32_t* value) {
  const std::optional<int64_t> number = file.Integer(key);
  if (!number.has_value() || *number < 0 || *number > UINT32_MAX) return NoShard(file, std::string("key \"") + key + "\" is missing or no number");
  *value = static_cast<uint32_t>(*number);
  return OkStatus();
}

Status ReadDigest(const ModelFile& file, const char* key, Sha256Digest* value) {
  const std::optional<Sha256Digest> digest = Sha256Digest::FromHex(file.String(key, ""));
  if (!digest.has_value()) return NoShard(file, std::string("key \"") + key + "\" is missing or no digest");
  *value = *digest;
  return OkStatus();
}

bool HasShardKey(const ModelFile& file) {
  for (const MetadataEntry& entry : file.metadata()) {
    if (entry.key.starts_with(kShardPrefix)) return true;
  }
  return false;
}

std::string OriginalName(const ModelFile& file, const std::string& name, LayerRange range) {
  if (name == "token_embd.weight" && file.Find(kShardOutputKey) != nullptr) return "output.weight";
  const std::optional<LayerName> layer = ParseLayerName(name);
  return layer.has_value() ? FormatLayerName(layer->layer + range.begin, layer->rest) : name;
}

// Byte for byte: a flipped bit anywhere before the data shows here, whatever the parser made of it.
Status VerifyHeader(const ModelFile& file, const EncodedHeader& expected) {
  if (file.parts().size() != 1 || file.parts()[0].bytes != expected.file_bytes) {
    return NoShard(file, "it has " + std::to_string(file.parts()[0].bytes) + " bytes; its header asks for " + std::to_string(expected.file_bytes));
  }
  const int descriptor = open(file.parts()[0].path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return Failure(file.path() + ": cannot be opened: " + std::strerror(errno));
  std::string found(expected.bytes.size(), '\0');
  size_t done = 0;
  while (done < found.size()) {
    const ssize_t got = pread(descriptor, found.data() + done, found.size() - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    done += static_cast<size_t>(got);
  }
  close(descriptor);
  if (done != found.size()) return Failure(file.path() + ": its header cannot be read");
  if (found == expected.bytes) return OkStatus();
  return NoShard(file, "its header is not the one that was written (\"" + std::string(kShardHeaderKey) + "\" differs)");
}

// The shard's own tensors, then whatever lies between and behind them: holes and padding, which must be zeros.
std::vector<Region> RegionsOf(const ModelFile& file, const std::unordered_set<std::string>& holes, uint64_t data_begin) {
  std::vector<Region> regions;
  std::vector<Region> rest;
  uint64_t end = data_begin;
  for (const TensorInfo& tensor : file.tensors()) {
    const bool hole = holes.contains(tensor.name);
    if (tensor.offset > end) rest.push_back({0, end, tensor.offset - end, true});
    (hole ? rest : regions).push_back({0, tensor.offset, tensor.bytes, hole});
    end = tensor.offset + tensor.bytes;
  }
  if (file.parts()[0].bytes > end) rest.push_back({0, end, file.parts()[0].bytes - end, true});
  regions.insert(regions.end(), rest.begin(), rest.end());
  return regions;
}

std::string TensorAt(const ModelFile& file, uint64_t offset) {
  std::string name = "the padding";
  for (const TensorInfo& tensor : file.tensors()) {
    if (tensor.offset <= offset && offset < tensor.offset + tensor.bytes) name = "tensor \"" + Printable(tensor.name) + "\"";
  }
  return name;
}

}  // namespace

Result<std::optional<ShardIdentity>> ReadShardIdentity(const ModelFile& file) {
  if (!HasShardKey(file)) return std::optional<ShardIdentity>();
  ShardIdentity identity;
  for (Status status : {ReadNumber(file, kShardRulesKey, &identity.rules_version), ReadNumber(file, kShardBeginKey, &identity.range.begin),
                        ReadNumber(file, kShardEndKey, &identity.range.end), ReadNumber(file, kShardLayersKey, &identity.layer_count),
                        ReadNumber(file, kShardVocabularyKey, &identity.vocabulary_size),
                        ReadNumber(file, kShardWidthKey, &identity.boundary_width), ReadDigest(file, kShardRootKey, &identity.model_root),
                        ReadDigest(file, kShardDigestKey, &identity.range_digest)}) {
    if (!status.ok()) return status;
  }
  if (identity.range.empty() || identity.range.end > identity.layer_count) {
    return NoShard(file, "its range " + identity.range.Text() + " is no range of " + std::to_string(identity.layer_count) + " layers");
  }
  identity.architecture = file.String("general.architecture", "");
  const std::optional<int64_t> blocks = file.Integer(identity.architecture + ".block_count");
  if (blocks.value_or(-1) != identity.range.size()) {
    return NoShard(file, "it has " + std::to_string(blocks.value_or(0)) + " layers, but its range is " + identity.range.Text());
  }
  identity.model_name = file.String("general.name", "");
  if (const MetadataEntry* holes = file.Find(kShardHolesKey); holes != nullptr) identity.holes = holes->strings;
  return std::optional<ShardIdentity>(std::move(identity));
}

Status VerifyShardIdentity(const ModelFile& file, const ShardIdentity& identity, const Progress& progress) {
  const std::string manifest = file.String(kShardManifestKey, "");
  if (Sha256().Update(manifest).Digest() != identity.model_root) return NoShard(file, "its manifest does not have the digest \"meshnet.model_root\"");
  const auto rows = TensorRows(manifest);
  if (!rows.has_value()) return NoShard(file, "its manifest cannot be read");
  const EncodedHeader expected = ExpectedShardHeader(file);
  if (Status status = VerifyHeader(file, expected); !status.ok()) return status;

  const std::unordered_set<std::string> holes(identity.holes.begin(), identity.holes.end());
  const std::vector<Region> regions = RegionsOf(file, holes, expected.bytes.size());
  Result<std::vector<Sha256Digest>> digests = HashRegions(file.parts(), regions, progress);
  if (!digests.ok()) return digests.status();

  std::vector<std::string> own;
  std::unordered_set<std::string> present;
  size_t index = 0;
  for (const TensorInfo& tensor : file.tensors()) {
    if (holes.contains(tensor.name)) continue;
    const std::string original = OriginalName(file, tensor.name, identity.range);
    own.push_back(TensorRow(original, tensor.type, tensor.dims, (*digests)[index++]));
    const auto row = rows->find(original);
    if (row == rows->end() || row->second != own.back()) {
      return NoShard(file, "tensor \"" + Printable(tensor.name) + "\" (\"" + Printable(original) + "\" of the model) is not what the manifest says");
    }
    present.insert(original);
  }
  for (; index < regions.size(); ++index) {
    if (!(*digests)[index].is_zero()) {
      return NoShard(file, TensorAt(file, regions[index].offset) + " at offset " + std::to_string(regions[index].offset) + " should hold zeros only");
    }
  }
  for (const auto& [name, row] : *rows) {
    const std::optional<LayerName> layer = ParseLayerName(name);
    if (layer.has_value() && layer->layer >= identity.range.begin && layer->layer < identity.range.end && !present.contains(name)) {
      return NoShard(file, "tensor \"" + Printable(name) + "\" of the model is missing");
    }
  }
  if (RangeDigest(std::move(own)) != identity.range_digest) return NoShard(file, "its tensors do not have the digest \"meshnet.range_digest\"");
  return OkStatus();
}

}  // namespace meshnet::gguf
