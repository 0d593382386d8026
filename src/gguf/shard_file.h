// Writing a shard, and reading back what a shard file claims to be.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "gguf/cut_plan.h"
#include "gguf/model_file.h"

namespace meshnet::gguf {

// One row per tensor of the whole model, sorted by name, plus the canonical hyperparameter and tokenizer keys (docs/protocol.md).
struct Manifest {
  std::string text;              // canonical form; model_root = SHA-256 of it
  Sha256Digest model_root;
};
using Progress = std::function<void(uint64_t done_bytes, uint64_t total_bytes)>;

// Hashes every tensor of the model (cached by path, size, mtime, inode in the cache folder).
Result<Manifest> BuildManifest(const ModelFile& file, const Progress& progress);

struct WrittenShard {
  std::string path;
  LayerRange range;
  uint64_t bytes = 0;
  uint64_t tensor_count = 0;
  uint64_t hole_bytes = 0;
  Sha256Digest range_digest;
};
// Temporary name, copy_file_range, fsync, rename; refused (kFailure) when the disk is short, naming needed and free bytes; never writes over
// an input; an existing output is kept unless `force`. Nothing is left behind on failure.
enum class Overwrite { kRefuse, kForce };
Result<WrittenShard> WriteShard(const ModelFile& file, const ShardPlan& plan, const Manifest& manifest, const std::string& out_path,
                                Overwrite overwrite, const Progress& progress);

// What a shard file says it is; nothing for a plain model.
struct ShardIdentity {
  LayerRange range;
  uint32_t layer_count = 0;      // of the whole model
  Sha256Digest model_root;
  Sha256Digest range_digest;
  std::string architecture;
  std::string model_name;
  uint32_t vocabulary_size = 0;  // of the whole model
  uint32_t boundary_width = 0;
  uint32_t rules_version = 0;    // of the cut rules that made it
  std::vector<std::string> holes;  // tensors that hold no data and that this stage never reads
};
Result<std::optional<ShardIdentity>> ReadShardIdentity(const ModelFile& file);

// Hashes the manifest and the shard's own tensors and compares (cached like BuildManifest). kBadModel names the tensor that differs.
Status VerifyShardIdentity(const ModelFile& file, const ShardIdentity& identity, const Progress& progress);

}  // namespace meshnet::gguf
