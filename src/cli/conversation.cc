#include "cli/conversation.h"

#include <signal.h>
#include <unistd.h>

#include "cli/report.h"
#include "cli/terminal_input.h"

namespace meshnet::cli {
namespace {

using nlohmann::ordered_json;

// One person's chat: the messages so far, and what a signal did to the last answer.
class Conversation {
 public:
  Conversation(ChatBackend& backend, ordered_json body, const std::string& system, Signals& signals)
      : backend_(backend), body_(std::move(body)), system_(system), signals_(signals), to_person_(isatty(STDOUT_FILENO) == 1) {
    Clear();
  }

  void Clear() {
    messages_ = ordered_json::array();
    if (!system_.empty()) messages_.push_back({{"role", "system"}, {"content", system_}});
  }

  // Prints the answer as it comes. Of a failed one the question is forgotten.
  Status Ask(const std::string& question) {
    interrupted_ = false;
    messages_.push_back({{"role", "user"}, {"content", question}});
    ordered_json body = body_;
    body["messages"] = messages_;
    std::string answer;
    Status status = backend_.Answer(
        body, [this, &answer](const AnswerPiece& piece) { Show(piece, &answer); },
        [this] { return SignalCame(); });
    if (thinking_) Print("\x1b[0m");
    thinking_ = false;
    if (!answer.empty() && answer.back() != '\n') Print("\n");
    if (status.ok()) {
      messages_.push_back({{"role", "assistant"}, {"content", answer}});
    } else {
      messages_.erase(messages_.size() - 1);
    }
    return status;
  }

  bool interrupted() const { return interrupted_; }
  // A signal asked the program to end.
  bool ending() const { return ending_; }

 private:
  bool SignalCame() {
    if (std::optional<int> number = signals_.Wait(Duration(0))) {
      interrupted_ = true;
      ending_ = ending_ || *number != SIGINT;
    }
    return interrupted_;
  }

  void Show(const AnswerPiece& piece, std::string* answer) {
    if (to_person_ && !piece.reasoning.empty()) {
      Print((thinking_ ? "" : "\x1b[2m") + piece.reasoning);
      thinking_ = true;
    }
    if (piece.content.empty()) return;
    Print((thinking_ ? "\x1b[0m\n\n" : "") + piece.content);
    thinking_ = false;
    *answer += piece.content;
  }

  ChatBackend& backend_;
  ordered_json body_, messages_;
  std::string system_;
  Signals& signals_;
  bool to_person_;
  bool thinking_ = false;
  bool interrupted_ = false;
  bool ending_ = false;
};

int Chatter(Conversation& conversation, Signals& signals) {
  TerminalInput input(signals);
  if (input.interactive()) Say("Ctrl-C ends an answer, Ctrl-D the chat; /clear starts over");
  while (!conversation.ending()) {
    TerminalInput::Line line = input.Read("> ");
    if (line.kind == TerminalInput::Line::Kind::kEnd) return 0;
    if (line.kind == TerminalInput::Line::Kind::kInterrupted) {
      Say("Ctrl-D ends the chat");
      continue;
    }
    if (line.text.find_first_not_of(" \t\n") == std::string::npos) continue;
    if (line.text == "/exit" || line.text == "/quit") return 0;
    if (line.text == "/clear") {
      conversation.Clear();
      continue;
    }
    Status status = conversation.Ask(line.text);
    if (!status.ok()) {
      int code = Report(status);
      if (!input.interactive()) return code;
    }
    if (conversation.interrupted() && !input.interactive()) return static_cast<int>(StatusCode::kFailure);
  }
  return 0;
}

}  // namespace

AnswerPiece PieceOf(const ordered_json& event) {
  AnswerPiece piece;
  auto choices = event.find("choices");
  if (choices == event.end() || !choices->is_array() || choices->empty() || !choices->front().is_object()) return piece;
  auto delta = choices->front().find("delta");
  if (delta == choices->front().end() || !delta->is_object()) return piece;
  auto text = [&delta](const char* name) {
    auto field = delta->find(name);
    return field != delta->end() && field->is_string() ? field->get<std::string>() : std::string();
  };
  return {text("content"), text("reasoning_content")};
}

void ChatFlags::AddTo(Arguments& arguments) {
  arguments.LocalText("-p,--prompt", &prompt_, "print one answer to this and end");
  arguments.Text("--system", &system_, "system message");
  arguments.Signed("-n,--max-tokens,--predict", &tokens_max_, "at most this many tokens an answer; -1: until the context is full");
  arguments.Real("--temp", &temperature_, "temperature; 0: always the likeliest token");
  arguments.Signed("--top-k", &top_k_, "sample from the k likeliest tokens; 0: all");
  arguments.Real("--top-p", &top_p_, "sample from the likeliest tokens up to this probability");
  arguments.Real("--min-p", &min_p_, "drop tokens below this share of the likeliest one");
  arguments.Signed("-s,--seed", &seed_, "seed; -1: a new one each time");
}

ordered_json ChatFlags::Body(const Arguments& arguments) const {
  ordered_json body = {{"stream", true}};
  // What was not asked for is the answering side's default.
  if (arguments.given("--temp")) body["temperature"] = temperature_;
  if (arguments.given("--top-k")) body["top_k"] = top_k_;
  if (arguments.given("--top-p")) body["top_p"] = top_p_;
  if (arguments.given("--min-p")) body["min_p"] = min_p_;
  if (seed_ >= 0) body["seed"] = seed_;
  if (tokens_max_ >= 0) body["max_tokens"] = tokens_max_;
  return body;
}

bool ChatFlags::has_prompt(const Arguments& arguments) const { return arguments.given("--prompt"); }

int Converse(ChatBackend& backend, const ChatFlags& flags, const Arguments& arguments, Signals& signals) {
  Conversation conversation(backend, flags.Body(arguments), flags.system(), signals);
  if (!flags.has_prompt(arguments)) return Chatter(conversation, signals);
  Status status = conversation.Ask(flags.prompt());
  if (!status.ok()) return Report(status);
  return conversation.interrupted() ? static_cast<int>(StatusCode::kFailure) : 0;
}

}  // namespace meshnet::cli
