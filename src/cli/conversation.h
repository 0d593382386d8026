// A chat in the terminal, whatever answers it.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "base/status.h"
#include "cli/arguments.h"
#include "cli/system_signals.h"

namespace meshnet::cli {

// A piece of an answer as it comes.
struct AnswerPiece {
  std::string content;
  std::string reasoning;
};
// Of one OpenAI stream chunk; empty texts when it carries none.
AnswerPiece PieceOf(const nlohmann::ordered_json& event);

class ChatBackend {
 public:
  virtual ~ChatBackend() = default;
  // Answers `body`, a chat completion request with "messages", and hands out the pieces in order. `cancelled` is asked at least every 100 ms;
  // once it is true the answer ends and that is no failure.
  virtual Status Answer(const nlohmann::ordered_json& body, const std::function<void(const AnswerPiece&)>& on_piece,
                        const std::function<bool()>& cancelled) = 0;
};

// What the person wants of every answer.
class ChatFlags {
 public:
  void AddTo(Arguments& arguments);
  // A request body without "messages".
  nlohmann::ordered_json Body(const Arguments& arguments) const;
  const std::string& system() const { return system_; }
  // -p was given: one answer, no chat.
  bool has_prompt(const Arguments& arguments) const;
  const std::string& prompt() const { return prompt_; }

 private:
  std::string prompt_, system_;
  double temperature_ = 0.8, top_p_ = 0.95, min_p_ = 0.05;
  int32_t top_k_ = 40, tokens_max_ = -1, seed_ = -1;
};

// One answer to the flags' prompt, or a chat until the end of input. The exit code.
int Converse(ChatBackend& backend, const ChatFlags& flags, const Arguments& arguments, Signals& signals);

}  // namespace meshnet::cli
