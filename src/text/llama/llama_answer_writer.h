// Turns sampled tokens into OpenAI deltas with llama.cpp's output parsers: reasoning, content, tool calls.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "chat.h"
#include "server-task.h"
#include "text/llama/llama_vocabulary.h"
#include "text/nesting_guard.h"
#include "text/openai_format.h"
#include "text/text_model.h"
#include "text/token_logprobs.h"
#include "text/visible_text.h"

namespace meshnet::text {

// What all choices of one request share. Never changes once the request is parsed, so that writers on many threads may read it.
struct AnswerPlan {
  AnswerIdentity identity;
  const LlamaVocabulary* vocabulary = nullptr;   // outlives the plan
  std::vector<std::string> stops;
  std::set<Token> preserved;                     // special tokens that the parser needs to see
  common_chat_parser_params parser;              // chat only
  bool parses_json = false;                      // tools or a schema: the parser recurses along brackets
  bool return_tokens = false;
  bool logprobs_wanted = false;
  ProbabilityForm probability_form = ProbabilityForm::kLogarithm;
};

class LlamaAnswerWriter : public AnswerWriter {
 public:
  LlamaAnswerWriter(std::shared_ptr<const AnswerPlan> plan, uint32_t index);

  std::vector<nlohmann::ordered_json> Begin() override;
  Fed Feed(const SampledToken& token) override;
  std::vector<nlohmann::ordered_json> End(bool cut) override;
  nlohmann::ordered_json Choice() override;

 private:
  bool chat() const { return plan_->identity.kind == ApiKind::kChat; }
  // Deltas (chat) or the text (completion) of what became visible, with the logprobs of its tokens.
  std::vector<nlohmann::ordered_json> Show(const std::string& text, bool last);
  std::vector<nlohmann::ordered_json> ChatDeltas(bool last);
  bool Parse(const std::string& text, bool partial, std::vector<common_chat_msg_diff>* diffs);
  nlohmann::ordered_json ChunkWith(const char* key, nlohmann::ordered_json value) const;
  void Remember(const SampledToken& token, const std::string& piece, size_t begin);
  // Moves tokens whose bytes are all shown to `shown_`; at the end also those that a stop string or the end cut through.
  void ReleaseTokens(bool last);
  nlohmann::ordered_json TakeLogprobs();
  FinishReason Finish(bool cut) const;

  std::shared_ptr<const AnswerPlan> plan_;
  uint32_t index_;
  VisibleText visible_;
  NestingGuard nesting_;
  bool too_deep_ = false;
  std::string text_;                 // completion: all that is visible
  std::string unparsed_;             // chat: visible, not yet given to the parser
  size_t parsed_bytes_ = 0;
  std::optional<task_result_state> state_;
  struct Pending {
    TokenEntry entry;
    size_t begin = 0;                // in raw bytes of the answer
    size_t end = 0;
  };
  std::deque<Pending> pending_;
  std::vector<TokenEntry> shown_;
  size_t shown_sent_ = 0;            // of `shown_`, already in a chunk
  size_t shown_characters_ = 0;
  std::vector<Token> tokens_;
  size_t tokens_sent_ = 0;
  FinishReason reason_ = FinishReason::kStop;
};

}  // namespace meshnet::text
