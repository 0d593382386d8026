// The tokenizer of one GGUF through llama.cpp, loaded without weights. Thread-safe after loading. Nothing here throws.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/ids.h"
#include "base/status.h"

struct llama_model;
struct llama_vocab;

namespace meshnet::text {

enum class SpecialTokens { kHide, kShow };

class LlamaVocabulary {
 public:
  // kBadModel names what the file lacks. The header is parsed by our own bounded reader first: llama.cpp asserts on some broken tokenizers.
  static Result<std::unique_ptr<LlamaVocabulary>> Load(const std::string& path);
  ~LlamaVocabulary();
  LlamaVocabulary(const LlamaVocabulary&) = delete;
  LlamaVocabulary& operator=(const LlamaVocabulary&) = delete;

  bool has_tokenizer() const { return has_tokenizer_; }
  uint32_t size() const { return size_; }
  const std::string& model_name() const { return model_name_; }
  uint32_t training_context() const { return training_context_; }
  // A lower bound of the tokens of `text`, without tokenizing it; 0 where one token may swallow any amount (unknown words).
  size_t TokensAtLeast(const std::string& text) const;
  const std::vector<Token>& end_tokens() const { return end_tokens_; }
  bool IsEndOfGeneration(Token token) const;
  bool InRange(Token token) const { return token >= 0 && static_cast<uint32_t>(token) < size_; }

  enum class BeginningOfText { kNo, kAsTheModelAsks };
  // `markers`: whether text such as "<|im_end|>" becomes its special token. Nothing when llama.cpp fails on the text, when there is no tokenizer,
  // or when more than a million characters follow each other without a break.
  std::optional<std::vector<Token>> Tokenize(const std::string& text, BeginningOfText beginning, bool markers) const;
  // Raw bytes; "" for an id out of range and, when hidden, for special tokens.
  std::string Piece(Token token, SpecialTokens special) const;
  std::string Detokenize(const std::vector<Token>& tokens) const;
  std::string beginning_of_text() const;
  std::string end_of_text() const;

  const llama_model* model() const { return model_; }
  const llama_vocab* vocab() const { return vocab_; }

 private:
  LlamaVocabulary() = default;

  llama_model* model_ = nullptr;
  const llama_vocab* vocab_ = nullptr;
  bool has_tokenizer_ = false;
  uint32_t size_ = 0;
  std::string model_name_;
  uint32_t training_context_ = 0;
  std::optional<size_t> piece_bytes_max_;
  std::unordered_set<char32_t> joined_;  // characters that occur in tokens of several characters
  std::vector<Token> end_tokens_;
  std::vector<bool> is_end_;
};

}  // namespace meshnet::text
