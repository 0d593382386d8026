// The header of a shard file, with the keys that depend on the manifest and the digest over the header itself. Pure.
#pragma once

#include "base/ids.h"
#include "gguf/cut_plan.h"
#include "gguf/gguf_writer.h"
#include "gguf/shard_file.h"

namespace meshnet::gguf {

EncodedHeader EncodeShardHeader(const ShardPlan& plan, const Manifest& manifest, const Sha256Digest& range_digest);

// The header that `file`, a shard, must have byte for byte, with the header digest computed anew. A changed key, name, shape or padding
// byte makes the two differ.
EncodedHeader ExpectedShardHeader(const ModelFile& file);

}  // namespace meshnet::gguf
