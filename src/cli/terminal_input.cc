#include "cli/terminal_input.h"

#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cwchar>

#include "cli/line_editing.h"
#include "cli/report.h"

namespace meshnet::cli {
namespace {

constexpr size_t kLineBytesMax = 16u << 20;

int Width(char32_t c) {
  int width = wcwidth(static_cast<wchar_t>(c));
  return width < 0 ? 1 : width;
}

int Width(const std::u32string& text) {
  int width = 0;
  for (char32_t c : text) width += Width(c);
  return width;
}

// Line breaks from a paste stay in the line, shown as one sign.
std::u32string Shown(const std::u32string& text) {
  std::u32string shown = text;
  std::replace(shown.begin(), shown.end(), U'\n', U'↵');
  return shown;
}

// Keys one by one, unechoed, with Ctrl-C as a key; as before when it goes.
class RawMode {
 public:
  RawMode() {
    active_ = tcgetattr(STDIN_FILENO, &before_) == 0;
    if (!active_) return;
    termios raw = before_;
    raw.c_iflag &= ~static_cast<tcflag_t>(BRKINT | ICRNL | INPCK | ISTRIP | IXON);
    raw.c_lflag &= ~static_cast<tcflag_t>(ECHO | ICANON | IEXTEN | ISIG);
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
  }
  ~RawMode() {
    if (active_) tcsetattr(STDIN_FILENO, TCSADRAIN, &before_);
  }
  RawMode(const RawMode&) = delete;
  RawMode& operator=(const RawMode&) = delete;

 private:
  termios before_;
  bool active_ = false;
};

// Draws prompt and line over as many rows as they need.
class LineView {
 public:
  LineView(int fd, std::string prompt) : fd_(fd), prompt_(std::move(prompt)), prompt_width_(Width(FromUtf8(prompt_))) {}

  void Draw(const LineBuffer& line) {
    int columns = Columns();
    std::u32string shown = Shown(line.text());
    int cursor = prompt_width_ + Width(shown.substr(0, line.cursor()));
    int end = prompt_width_ + Width(shown);
    std::string out = UpToFirstRow() + "\r\x1b[J" + prompt_ + ToUtf8(shown);
    if (end % columns == 0) out += "\r\n";  // the terminal moves on only with the next character
    int end_row = end / columns, cursor_row = cursor / columns;
    if (end_row > cursor_row) out += "\x1b[" + std::to_string(end_row - cursor_row) + "A";
    out += "\r";
    if (cursor % columns > 0) out += "\x1b[" + std::to_string(cursor % columns) + "C";
    row_ = cursor_row;
    WriteAll(fd_, out);
  }
  // Leaves the line on the screen and goes below it.
  void Finish(LineBuffer& line) {
    line.Apply({Key::Kind::kEnd, 0});
    Draw(line);
    WriteAll(fd_, "\r\n");
  }
  void ClearScreen() {
    WriteAll(fd_, "\x1b[H\x1b[2J");
    row_ = 0;
  }

 private:
  std::string UpToFirstRow() const { return row_ > 0 ? "\x1b[" + std::to_string(row_) + "A" : ""; }
  int Columns() const {
    winsize size = {};
    return ioctl(fd_, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
  }

  int fd_;
  std::string prompt_;
  int prompt_width_;
  int row_ = 0;  // of the cursor, below the first one
};

}  // namespace

struct TerminalInput::Impl {
  explicit Impl(Signals& given) : signals(given), interactive(isatty(STDIN_FILENO) == 1) {
    screen = isatty(STDOUT_FILENO) == 1 ? STDOUT_FILENO : STDERR_FILENO;
  }

  enum class Woken { kInput, kInterrupt, kEnd };
  // Waits for input or a signal.
  Woken Wait() {
    for (;;) {
      pollfd entries[] = {{STDIN_FILENO, POLLIN, 0}, {signals.fd(), POLLIN, 0}};
      if (poll(entries, 2, -1) < 0) {
        if (errno == EINTR) continue;
        return Woken::kEnd;
      }
      if (entries[1].revents != 0) {
        std::optional<int> number = signals.Wait(Duration(0));
        if (number) return *number == SIGINT ? Woken::kInterrupt : Woken::kEnd;
      }
      if (entries[0].revents != 0) return Woken::kInput;
    }
  }

  // One more byte of stdin; false at its end.
  bool NextByte(unsigned char* byte) {
    if (place == held.size()) {
      char buffer[4096];
      ssize_t count;
      do {
        count = read(STDIN_FILENO, buffer, sizeof buffer);
      } while (count < 0 && errno == EINTR);
      if (count <= 0) return false;
      held.assign(buffer, static_cast<size_t>(count));
      place = 0;
    }
    *byte = static_cast<unsigned char>(held[place++]);
    return true;
  }

  Line ReadPiped();
  Line ReadTyped(const std::string& prompt);
  // The finished line, when `key` ends it.
  std::optional<Line> OnKey(const Key& key, LineBuffer& line, LineView& view);

  Signals& signals;
  const bool interactive;
  int screen;
  std::string held;
  size_t place = 0;
  LineHistory history;
};

TerminalInput::TerminalInput(Signals& signals) : impl_(std::make_unique<Impl>(signals)) {}
TerminalInput::~TerminalInput() = default;
bool TerminalInput::interactive() const { return impl_->interactive; }

TerminalInput::Line TerminalInput::Read(const std::string& prompt) {
  return impl_->interactive ? impl_->ReadTyped(prompt) : impl_->ReadPiped();
}

TerminalInput::Line TerminalInput::Impl::ReadPiped() {
  std::string text;
  for (;;) {
    if (place == held.size() && Wait() != Woken::kInput) return {Line::Kind::kEnd, ""};
    unsigned char byte;
    if (!NextByte(&byte)) return text.empty() ? Line{Line::Kind::kEnd, ""} : Line{Line::Kind::kText, text};
    if (byte == '\n') {
      if (!text.empty() && text.back() == '\r') text.pop_back();
      return {Line::Kind::kText, text};
    }
    if (text.size() < kLineBytesMax) text.push_back(static_cast<char>(byte));
  }
}

TerminalInput::Line TerminalInput::Impl::ReadTyped(const std::string& prompt) {
  RawMode raw;
  WriteAll(screen, "\x1b[?2004h");
  LineView view(screen, prompt);
  LineBuffer line;
  KeyParser parser;
  std::optional<Line> result;
  view.Draw(line);
  while (!result) {
    Woken woken = place < held.size() ? Woken::kInput : Wait();
    unsigned char byte = 0;
    if (woken == Woken::kInterrupt) {
      result = OnKey({Key::Kind::kInterrupt, 0}, line, view);
    } else if (woken == Woken::kEnd || !NextByte(&byte)) {
      view.Finish(line);
      result = Line{Line::Kind::kEnd, ""};
    } else if (std::optional<Key> key = parser.Feed(byte)) {
      result = OnKey(*key, line, view);
    }
  }
  WriteAll(screen, "\x1b[?2004l");
  return *result;
}

std::optional<TerminalInput::Line> TerminalInput::Impl::OnKey(const Key& key, LineBuffer& line, LineView& view) {
  if (key.kind == Key::Kind::kEndOfInput && !line.text().empty()) {
    line.Apply({Key::Kind::kDelete, 0});
  } else if (!line.Apply(key)) {
    std::optional<std::u32string> other;
    switch (key.kind) {
      case Key::Kind::kEnter:
        view.Finish(line);
        history.Add(line.text());
        return Line{Line::Kind::kText, ToUtf8(line.text())};
      case Key::Kind::kInterrupt:
        view.Finish(line);
        return Line{Line::Kind::kInterrupted, ""};
      case Key::Kind::kEndOfInput:
        view.Finish(line);
        return Line{Line::Kind::kEnd, ""};
      case Key::Kind::kUp:
        other = history.Older(line.text());
        break;
      case Key::Kind::kDown:
        other = history.Newer();
        break;
      case Key::Kind::kClearScreen:
        view.ClearScreen();
        break;
      default:
        break;
    }
    if (other) line.Set(*other);
  }
  // A paste is drawn once, when its last byte is in.
  if (place == held.size()) view.Draw(line);
  return std::nullopt;
}

}  // namespace meshnet::cli
