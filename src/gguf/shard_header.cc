#include "gguf/shard_header.h"

#include "base/sha256.h"
#include "gguf/shard_keys.h"

namespace meshnet::gguf {
namespace {

// The digest is taken with its own value empty.
EncodedHeader Seal(std::vector<MetadataEntry> metadata, const std::vector<TensorLayout>& tensors) {
  metadata.push_back(MetadataEntry::String(kShardHeaderKey, ""));
  const Sha256Digest digest = Sha256().Update(EncodeHeader(metadata, tensors).bytes).Digest();
  metadata.back() = MetadataEntry::String(kShardHeaderKey, digest.Hex());
  return EncodeHeader(metadata, tensors);
}

}  // namespace

EncodedHeader EncodeShardHeader(const ShardPlan& plan, const Manifest& manifest, const Sha256Digest& range_digest) {
  std::vector<MetadataEntry> metadata = plan.metadata;
  metadata.push_back(MetadataEntry::String(kShardRootKey, manifest.model_root.Hex()));
  metadata.push_back(MetadataEntry::String(kShardDigestKey, range_digest.Hex()));
  metadata.push_back(MetadataEntry::String(kShardManifestKey, manifest.text));
  std::vector<TensorLayout> tensors;
  for (const PlannedTensor& tensor : plan.tensors) tensors.push_back({tensor.name, tensor.type, tensor.dims, tensor.bytes});
  return Seal(std::move(metadata), tensors);
}

EncodedHeader ExpectedShardHeader(const ModelFile& file) {
  std::vector<MetadataEntry> metadata;
  for (const MetadataEntry& entry : file.metadata()) {
    if (entry.key != kShardHeaderKey) metadata.push_back(entry);
  }
  std::vector<TensorLayout> tensors;
  for (const TensorInfo& tensor : file.tensors()) tensors.push_back({tensor.name, tensor.type, tensor.dims, tensor.bytes});
  return Seal(std::move(metadata), tensors);
}

}  // namespace meshnet::gguf
