// Picks the next token of one sequence with llama.cpp's own sampler chain (common/sampling.h), whose last element is replaced by a draw that
// depends on seed and position only: a position that is computed again gives the same token. XTC, mirostat and adaptive-p keep llama.cpp's
// private generators, so those are repeatable only from the start of an answer, and start anew where a lazy grammar begins to hold.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/ids.h"
#include "base/status.h"
#include "protocol/sampling_params.h"

struct llama_context;
struct llama_model;

namespace meshnet {

// What the sampler of a tail needs to know of it. The model must outlive every sampler.
struct SamplerModel {
  const llama_model* model = nullptr;
  uint32_t context_tokens = 0;  // -1 in a "last n" parameter stands for it, and no such parameter exceeds it
};

class TailSampler {
 public:
  // `params` have passed the wire (ValidateSampling). What only the tail can tell is judged here: names of tokens in the grammar, text that must
  // fit it, llama.cpp's own opinion. kRefused names what is wrong and quotes neither grammar nor prompt.
  static Result<std::unique_ptr<TailSampler>> Create(const SamplerModel& model, const SamplingParams& params);
  ~TailSampler();

  const SamplingParams& params() const;
  // Tokens of the log that penalties and grammar have seen.
  size_t accepted() const;

  // `log` is the whole sequence; what is new in it is accepted. kFailure: a generated token does not fit the grammar, and the sampler is spent.
  Status Accept(std::span<const Token> log);

  // From the logits of batch row `row` of the last llama_decode, all finite. `position` is where the token will stand. kRefused: the parameters leave no token.
  Result<SampledToken> Sample(llama_context* context, int32_t row, uint32_t position);

 private:
  struct State;
  explicit TailSampler(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace meshnet
