// What the command line says: one line for an error, progress and tables. Data goes to stdout, everything else to stderr.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/clock.h"

namespace meshnet::cli {

// `meshnet: MESSAGE` on stderr, line breaks folded, and the exit code that goes with it. Ok prints nothing and is 0.
int Report(const Status& status);

// `meshnet: TEXT` on stderr.
void Say(const std::string& text);

// Writes all of `text` to a descriptor. 0, or the errno that ended it.
int WriteAll(int fd, const std::string& text);

// The same to stdout. A reader that went away is not an error of ours; anything else is kept for LostOutput.
void Print(const std::string& text);

// errno of a Print that failed, if one did. Thread-safe.
std::optional<int> LostOutput();

// "98.3 MiB".
std::string HumanBytes(uint64_t bytes);

// A fixed number of decimals.
std::string Decimal(double value, int places);

// Columns wide enough for their cells; numbers (cells that begin with a digit or a sign) to the right.
class TextTable {
 public:
  explicit TextTable(std::vector<std::string> header);
  void Add(std::vector<std::string> row);
  std::string Format() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

// Progress of one long piece of work on stderr: a line that rewrites itself on a terminal, else a line every ten seconds. Short work says
// nothing. Not thread-safe.
class ProgressLine {
 public:
  explicit ProgressLine(std::string what);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void Update(uint64_t done, uint64_t total);
  void UpdateText(const std::string& progress);

 private:
  bool IsDue();

  std::string what_;
  bool terminal_;
  bool shown_ = false;
  Time started_;
  Time last_;
};

}  // namespace meshnet::cli
