// The metadata keys that make a GGUF a shard.
#pragma once

namespace meshnet::gguf {

inline constexpr char kShardPrefix[] = "meshnet.";
inline constexpr char kShardRulesKey[] = "meshnet.rules_version";
inline constexpr char kShardBeginKey[] = "meshnet.layer_begin";
inline constexpr char kShardEndKey[] = "meshnet.layer_end";
inline constexpr char kShardLayersKey[] = "meshnet.layer_count";          // of the whole model
inline constexpr char kShardVocabularyKey[] = "meshnet.vocabulary_size";  // of the whole model
inline constexpr char kShardWidthKey[] = "meshnet.boundary_width";
inline constexpr char kShardHolesKey[] = "meshnet.holes";                 // names of tensors without data
inline constexpr char kShardOutputKey[] = "meshnet.output_as_token_embd"; // bool: the tensor so named is the model's output.weight
// Written by WriteShard: they need the manifest.
inline constexpr char kShardRootKey[] = "meshnet.model_root";             // hex
inline constexpr char kShardDigestKey[] = "meshnet.range_digest";         // hex
inline constexpr char kShardManifestKey[] = "meshnet.manifest";
inline constexpr char kShardHeaderKey[] = "meshnet.header_digest";        // hex; of everything else in the header

}  // namespace meshnet::gguf
