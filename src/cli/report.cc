#include "cli/report.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <cstdio>

#include "base/system_clock.h"

namespace meshnet::cli {
namespace {

// What takes less than this is not worth a line.
constexpr auto kQuiet = std::chrono::milliseconds(700);
constexpr auto kTerminalPace = std::chrono::milliseconds(100);
constexpr auto kLogPace = std::chrono::seconds(10);

std::atomic<int> lost_output{0};  // errno of the last write to stdout that failed

Time Now() { return SystemClock().Now(); }

size_t DisplayWidth(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

bool IsNumberCell(const std::string& cell) {
  return !cell.empty() && (std::isdigit(static_cast<unsigned char>(cell[0])) || cell[0] == '-' || cell[0] == '+');
}

}  // namespace

int WriteAll(int fd, const std::string& text) {
  size_t done = 0;
  while (done < text.size()) {
    ssize_t count = write(fd, text.data() + done, text.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return errno;
    done += static_cast<size_t>(count);
  }
  return 0;
}

int Report(const Status& status) {
  if (!status.ok()) Say(status.message());
  return status.exit_code();
}

void Say(const std::string& text) {
  std::string line = "meshnet: " + text;
  std::replace(line.begin(), line.end(), '\n', ' ');
  WriteAll(STDERR_FILENO, line + "\n");
}

void Print(const std::string& text) {
  const int error = WriteAll(STDOUT_FILENO, text);
  if (error != 0 && error != EPIPE) lost_output = error;
}

std::optional<int> LostOutput() { return lost_output == 0 ? std::nullopt : std::optional<int>(lost_output); }

std::string HumanBytes(uint64_t bytes) {
  static constexpr const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(units)) {
    value /= 1024;
    ++unit;
  }
  return Decimal(value, unit == 0 ? 0 : 1) + " " + units[unit];
}

std::string Decimal(double value, int places) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", places, value);
  return text;
}

TextTable::TextTable(std::vector<std::string> header) { rows_.push_back(std::move(header)); }

void TextTable::Add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }

std::string TextTable::Format() const {
  std::vector<size_t> widths;
  std::vector<bool> to_the_right;
  for (size_t line = 0; line < rows_.size(); ++line) {
    widths.resize(std::max(widths.size(), rows_[line].size()));
    to_the_right.resize(widths.size(), rows_.size() > 1);
    for (size_t i = 0; i < rows_[line].size(); ++i) {
      widths[i] = std::max(widths[i], DisplayWidth(rows_[line][i]));
      if (line > 0 && !IsNumberCell(rows_[line][i])) to_the_right[i] = false;
    }
  }
  std::string text;
  for (const std::vector<std::string>& row : rows_) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      std::string padding(widths[i] - DisplayWidth(row[i]), ' ');
      if (i > 0) line += "  ";
      line += to_the_right[i] ? padding + row[i] : row[i] + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

ProgressLine::ProgressLine(std::string what)
    : what_(std::move(what)), terminal_(isatty(STDERR_FILENO) == 1), started_(Now()), last_(started_) {}

ProgressLine::~ProgressLine() {
  if (shown_ && terminal_) WriteAll(STDERR_FILENO, "\r\x1b[K");
}

bool ProgressLine::IsDue() {
  Time now = Now();
  if (now - started_ < kQuiet) return false;
  if (shown_ && now - last_ < (terminal_ ? Duration(kTerminalPace) : Duration(kLogPace))) return false;
  shown_ = true;
  last_ = now;
  return true;
}

void ProgressLine::Update(uint64_t done, uint64_t total) {
  std::string percent = total > 0 ? " of " + HumanBytes(total) + " (" + std::to_string(done * 100 / total) + " %)" : "";
  UpdateText(HumanBytes(done) + percent);
}

void ProgressLine::UpdateText(const std::string& progress) {
  if (!IsDue()) return;
  std::string line = "meshnet: " + what_ + " " + progress;
  WriteAll(STDERR_FILENO, terminal_ ? "\r" + line + "\x1b[K" : line + "\n");
}

}  // namespace meshnet::cli
