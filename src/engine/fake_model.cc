#include "engine/fake_model.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "base/check.h"

namespace meshnet {
namespace {

// Constants that keep the uses of one mixing function apart.
constexpr uint64_t kEmptySalt = 0x6d6573682d6b7631;
constexpr uint64_t kEmbeddingSalt = 0x6d6573682d656d62;
constexpr uint64_t kRowSalt = 0x6d6573682d726f77;
constexpr uint64_t kGreedySalt = 0x6d6573682d677264;
constexpr uint64_t kLogitSalt = 0x6d6573682d6c6f67;
constexpr uint64_t kDrawSalt = 0x6d6573682d647277;

// Above every other logit, which are below 1.
constexpr float kGreedyLogit = 4.0f;

// The finaliser of splitmix64 over a multiplied sum: every input bit reaches every output bit.
uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9e3779b97f4a7c15 + b + 0x2545f4914f6cdd1d;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

// 24 bits of `hash` as a multiple of 2^-23 in [-1, 1): exact in f32.
float UnitValue(uint64_t hash) { return static_cast<float>(static_cast<int32_t>(hash >> 40) - (1 << 23)) / static_cast<float>(1 << 23); }

bool ends(const FakeModel& model, Token token) { return std::ranges::count(model.end_of_generation_tokens, token) > 0; }

Token GreedyToken(const FakeModel& model, FakeState last_layer) {
  return static_cast<Token>(Mix(last_layer, kGreedySalt) % model.vocabulary_size);
}

Token DrawToken(const FakeModel& model, FakeState last_layer, uint32_t position, const SamplingParams& sampling) {
  const bool last = model.answer_tokens > 0 && position + 1 >= sampling.prompt_len.value + model.answer_tokens;
  if (last && !sampling.ignore_eos) return model.end_of_generation_tokens.at(0);
  Token token = GreedyToken(model, last_layer);
  if (sampling.temperature > 0) {
    const uint64_t draw = Mix(Mix(kDrawSalt, sampling.seed), position);
    token = static_cast<Token>(Mix(last_layer, draw) % model.vocabulary_size);
  }
  if (sampling.ignore_eos) {
    while (ends(model, token)) token = static_cast<Token>((static_cast<uint32_t>(token) + 1) % model.vocabulary_size);
  }
  return token;
}

void AddLogprobs(const FakeModel& model, FakeState last_layer, const SamplingParams& sampling, SampledToken& sampled) {
  std::vector<float> logits(model.vocabulary_size);
  FakeFillLogits(model, last_layer, logits);
  double sum = 0;
  for (float logit : logits) sum += std::exp(static_cast<double>(logit));
  const double log_sum = std::log(sum);
  auto logprob = [&](Token token) { return static_cast<float>(logits[static_cast<size_t>(token)] - log_sum); };

  sampled.logprob = logprob(sampled.token);
  std::vector<Token> order(model.vocabulary_size);
  std::iota(order.begin(), order.end(), 0);
  const size_t count = std::min<size_t>(sampling.logprobs, order.size());
  std::ranges::partial_sort(order, order.begin() + static_cast<ptrdiff_t>(count), [&](Token a, Token b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  for (size_t i = 0; i < count; ++i) sampled.top.push_back({order[i], logprob(order[i])});
}

// Feeds one token through all layers, as any chain of stages does.
void Feed(const FakeModel& model, Token token, uint32_t position, std::vector<FakeState>& states, std::vector<float>& row) {
  uint64_t input = FakeEmbedding(token);
  for (uint32_t layer = 0; layer < model.layer_count; ++layer) {
    states[layer] = FakeNextState(states[layer], layer, token, position, input);
    FakeFillRow(states[layer], row);
    input = FakeRowHash(row);
  }
}

std::vector<FakeState> EmptyStates(const FakeModel& model) {
  MESHNET_CHECK(model.layer_count > 0 && model.width > 0 && model.vocabulary_size > 1);
  std::vector<FakeState> states;
  for (uint32_t layer = 0; layer < model.layer_count; ++layer) states.push_back(FakeEmptyState(layer));
  return states;
}

}  // namespace

FakeState FakeEmptyState(uint32_t layer) { return Mix(kEmptySalt, layer); }

FakeState FakeNextState(FakeState state, uint32_t layer, Token token, uint32_t position, uint64_t input) {
  const uint64_t fed = Mix(Mix(static_cast<uint64_t>(layer) << 32 | position, static_cast<uint32_t>(token)), input);
  return Mix(state, fed);
}

uint64_t FakeEmbedding(Token token) { return Mix(kEmbeddingSalt, static_cast<uint32_t>(token)); }

void FakeFillRow(FakeState state, std::span<float> row) {
  for (size_t i = 0; i < row.size(); ++i) row[i] = UnitValue(Mix(state ^ kRowSalt, i));
}

uint64_t FakeRowHash(std::span<const float> row) {
  uint64_t hash = kRowSalt;
  for (float value : row) hash = Mix(hash, std::bit_cast<uint32_t>(value));
  return hash;
}

void FakeFillLogits(const FakeModel& model, FakeState last_layer, std::span<float> logits) {
  MESHNET_CHECK(logits.size() == model.vocabulary_size);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = UnitValue(Mix(last_layer ^ kLogitSalt, i));
  logits[static_cast<size_t>(GreedyToken(model, last_layer))] = kGreedyLogit;
}

SampledToken FakeSample(const FakeModel& model, FakeState last_layer, uint32_t position, const SamplingParams& sampling) {
  SampledToken sampled;
  sampled.token = DrawToken(model, last_layer, position, sampling);
  sampled.end_of_generation = ends(model, sampled.token);
  if (sampling.logprobs_wanted || sampling.logprobs > 0) AddLogprobs(model, last_layer, sampling, sampled);
  return sampled;
}

FakeState FakeLastState(const FakeModel& model, std::span<const Token> prefix) {
  std::vector<FakeState> states = EmptyStates(model);
  std::vector<float> row(model.width);
  uint32_t position = 0;
  for (Token token : prefix) Feed(model, token, position++, states, row);
  return states.back();
}

std::vector<Token> FakeAnswer(const FakeModel& model, std::span<const Token> prompt, uint32_t tokens_max, SamplingParams sampling) {
  std::vector<FakeState> states = EmptyStates(model);
  std::vector<float> row(model.width);
  uint32_t position = 0;
  for (Token token : prompt) Feed(model, token, position++, states, row);
  sampling.prompt_len = PastLen(position);

  std::vector<Token> answer;
  while (answer.size() < tokens_max) {
    const SampledToken sampled = FakeSample(model, states.back(), position, sampling);
    answer.push_back(sampled.token);
    if (sampled.end_of_generation) break;
    Feed(model, sampled.token, position++, states, row);
  }
  return answer;
}

}  // namespace meshnet
