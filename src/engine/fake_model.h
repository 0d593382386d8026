// A language model made of hashes. Each layer's KV is a rolling hash of every (token, position, input row) it was fed, and each row is derived
// from it, so a leaked, doubled, skipped, stale or reordered token changes every later answer. Like a real model's, its answer depends on
// neither chunking, batch neighbours nor cuts. Pure and thread-safe; a test computes the right answer with it and no engine.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "protocol/sampling_params.h"

namespace meshnet {

struct FakeModel {
  uint32_t layer_count = 6;
  uint32_t width = 8;                // f32 values of a hidden row, at least 1
  uint32_t vocabulary_size = 1000;   // at least 2
  // Sampled by chance like any other token, and the end of an answer when it is. Empty: an answer never ends by chance.
  std::vector<Token> end_of_generation_tokens;
  // Above 0: the n-th generated token (counted from SamplingParams::prompt_len) is end_of_generation_tokens[0], which must exist.
  uint32_t answer_tokens = 0;
};

// The KV of one layer: a rolling hash.
using FakeState = uint64_t;

FakeState FakeEmptyState(uint32_t layer);
// What the layer holds after one more token. `input` is the hash of its input row.
FakeState FakeNextState(FakeState state, uint32_t layer, Token token, uint32_t position, uint64_t input);

// The head's input for a token, which stands for its embedding.
uint64_t FakeEmbedding(Token token);
// Writes the row that a layer in `state` puts out: finite, exactly representable values in [-1, 1).
void FakeFillRow(FakeState state, std::span<float> row);
// Of the bits of all values.
uint64_t FakeRowHash(std::span<const float> row);

// The logits after the last layer; their largest value is at the greedy token, which is a hash modulo the vocabulary.
void FakeFillLogits(const FakeModel& model, FakeState last_layer, std::span<float> logits);
// The token for the next `position`: greedy at temperature <= 0, else by f(seed, position). With logprobs as asked.
SampledToken FakeSample(const FakeModel& model, FakeState last_layer, uint32_t position, const SamplingParams& sampling);

// The last layer's state after the whole prefix.
FakeState FakeLastState(const FakeModel& model, std::span<const Token> prefix);
// What a client must get for `prompt`: at most `tokens_max` tokens, ending with the end-of-generation token if one comes. The prompt length
// of `sampling` is set here, as the session driver does.
std::vector<Token> FakeAnswer(const FakeModel& model, std::span<const Token> prompt, uint32_t tokens_max, SamplingParams sampling);

}  // namespace meshnet
