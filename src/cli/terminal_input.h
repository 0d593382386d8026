// Reads lines from a person (with editing and history) or from a pipe.
#pragma once

#include <memory>
#include <string>

#include "cli/system_signals.h"

namespace meshnet::cli {

class TerminalInput {
 public:
  explicit TerminalInput(Signals& signals);
  ~TerminalInput();

  struct Line {
    enum class Kind {
      kText,
      kEnd,          // end of input, Ctrl-D on an empty line, or a signal that asks us to end
      kInterrupted,  // Ctrl-C: what was typed is thrown away
    };
    Kind kind = Kind::kEnd;
    std::string text;
  };
  // `prompt` is shown to a person only.
  Line Read(const std::string& prompt);
  // Input comes from a person.
  bool interactive() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace meshnet::cli
