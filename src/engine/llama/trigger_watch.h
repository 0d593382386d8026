// Watches an answer for the moment from which its lazy grammar holds, as llama.cpp's sampler does (common_sampler_accept and
// llama_grammar_accept_impl). llama.cpp keeps all text since the answer began and searches it again after each token, with a std::regex that
// recurses once for each blank in a row: a long answer costs quadratic time, and one of 27,000 blanks the process. Here only the end of the text is
// searched. One thread.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <regex>
#include <string>
#include <vector>

#include "base/ids.h"
#include "engine/llama/llama_handles.h"
#include "protocol/sampling_params.h"

struct llama_vocab;

namespace meshnet {

class TriggerWatch {
 public:
  // `params` passed CheckSamplingParams. The vocabulary outlives the watch.
  TriggerWatch(const llama_vocab* vocab, const SamplingParams& params);

  // Takes the generated token at `index` of the log. Once the grammar holds: the index of the first token that it has to see. After that, no more.
  std::optional<size_t> Add(Token token, size_t index);

 private:
  struct Piece {
    size_t index;
    size_t end;  // in the whole text
  };
  struct Trigger {
    std::string word;
    std::optional<std::regex> pattern;
  };

  // The token as the grammar sees it: outside thoughts, and with the sequence that ends them.
  std::optional<size_t> AddVisible(Token token, size_t index);
  // Where the first trigger that ends behind `fresh` begins, both in `text_`.
  std::optional<size_t> Find(size_t fresh) const;

  const llama_vocab* vocab_;
  LlamaSamplerPtr thoughts_;  // null: none are told apart
  std::vector<Token> tokens_;
  std::vector<Trigger> triggers_;
  std::string text_;       // the end of what the grammar saw
  size_t dropped_ = 0;     // bytes in front of it
  std::deque<Piece> pieces_;
};

// The tokens of what the chat template already wrote of the answer, as llama.cpp's sampler takes them.
std::vector<Token> PrefillTokens(const llama_vocab* vocab, const std::string& generation_prompt);

}  // namespace meshnet
