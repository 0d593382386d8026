// The manifest's canonical text: what a model is, independent of how its file is laid out, split or typed. Pure.
//
//   meshnet-manifest 1
//   architecture llama
//   key llama.block_count 30                                     hyperparameters and tokenizer, sorted
//   tensor blk.0.attn_k.weight q4_1 576x192 <sha256 of data>     sorted by name
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "gguf/model_file.h"

namespace meshnet::gguf {

// One line of the manifest, with its newline.
std::string TensorRow(std::string_view name, uint32_t type, const std::vector<uint64_t>& dims, const Sha256Digest& digest);

// `digests` belong to file.tensors(), in order.
std::string ManifestText(const ModelFile& file, const std::vector<Sha256Digest>& digests);

// The tensor rows of a manifest by tensor name; nothing when `text` is no manifest.
std::optional<std::unordered_map<std::string, std::string>> TensorRows(std::string_view text);

// SHA-256 over rows, sorted by tensor name.
Sha256Digest RangeDigest(std::vector<std::string> rows);

}  // namespace meshnet::gguf
