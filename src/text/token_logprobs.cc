#include "text/token_logprobs.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "text/visible_text.h"

namespace meshnet::text {
namespace {

using nlohmann::ordered_json;

// JSON has no infinity: like llama-server, the lowest float stands for "impossible".
float Finite(float logprob) { return std::isfinite(logprob) ? logprob : std::numeric_limits<float>::lowest(); }

ordered_json ByteArray(const std::string& bytes) {
  ordered_json array = ordered_json::array();
  for (char byte : bytes) array.push_back(static_cast<unsigned>(static_cast<unsigned char>(byte)));
  return array;
}

ordered_json One(Token token, const std::string& bytes, float logprob, ProbabilityForm form) {
  const bool probability = form == ProbabilityForm::kProbability;
  return {{"id", token}, {"token", ToUtf8(bytes, nullptr)}, {"bytes", ByteArray(bytes)},
          {probability ? "prob" : "logprob", probability ? std::exp(Finite(logprob)) : Finite(logprob)}};
}

float OwnLogprob(const SampledToken& sampled) { return sampled.logprob.value_or(std::numeric_limits<float>::lowest()); }

ordered_json Content(const TokenEntry& entry, ProbabilityForm form) {
  ordered_json content = One(entry.sampled.token, entry.bytes, OwnLogprob(entry.sampled), form);
  ordered_json top = ordered_json::array();
  for (size_t i = 0; i < entry.sampled.top.size(); ++i) {
    top.push_back(One(entry.sampled.top[i].token, i < entry.top_bytes.size() ? entry.top_bytes[i] : "", entry.sampled.top[i].logprob, form));
  }
  content[form == ProbabilityForm::kProbability ? "top_probs" : "top_logprobs"] = std::move(top);
  return content;
}

}  // namespace

ordered_json LogprobsJson(ApiKind kind, std::span<const TokenEntry> entries, ProbabilityForm form) {
  ordered_json result = {{"content", ordered_json::array()}};
  for (const TokenEntry& entry : entries) result["content"].push_back(Content(entry, form));
  if (kind == ApiKind::kChat) return result;
  for (const char* name : {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) result[name] = ordered_json::array();
  for (const TokenEntry& entry : entries) {
    ordered_json top = ordered_json::object();
    // Highest first, so of two tokens that show alike the likelier one stays.
    for (size_t i = 0; i < std::min(entry.sampled.top.size(), entry.top_bytes.size()); ++i) {
      top.emplace(ToUtf8(entry.top_bytes[i], nullptr), Finite(entry.sampled.top[i].logprob));
    }
    result["tokens"].push_back(ToUtf8(entry.bytes, nullptr));
    result["token_logprobs"].push_back(Finite(OwnLogprob(entry.sampled)));
    result["top_logprobs"].push_back(std::move(top));
    result["text_offset"].push_back(entry.text_offset);
  }
  return result;
}

}  // namespace meshnet::text
