// What a terminal line editor decides: bytes to keys, keys to a line, lines to a history. Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace meshnet::cli {

struct Key {
  enum class Kind {
    kCharacter, kEnter, kBackspace, kDelete, kLeft, kRight, kWordLeft, kWordRight, kHome, kEnd, kUp, kDown,
    kKillToEnd, kKillToStart, kKillWord, kInterrupt, kEndOfInput, kClearScreen,
  };
  Kind kind = Kind::kCharacter;
  char32_t character = 0;  // kCharacter
};

// Turns the bytes of a terminal in raw mode into keys; UTF-8 and escape sequences may be split over calls. Unknown sequences vanish. In a
// bracketed paste line breaks are characters.
class KeyParser {
 public:
  std::optional<Key> Feed(unsigned char byte);

 private:
  std::optional<Key> FinishSequence();
  std::optional<Key> Plain(unsigned char byte);
  std::optional<Key> Continue(unsigned char byte);

  std::string sequence_;    // since ESC
  char32_t character_ = 0;  // UTF-8 so far
  int missing_ = 0;         // bytes of it to come
  bool pasting_ = false;
};

// One line and the cursor in it.
class LineBuffer {
 public:
  // False when the key is none of editing: enter, up, down, interrupt and the like are the caller's.
  bool Apply(const Key& key);
  void Set(std::u32string text);
  void Clear() { Set({}); }

  const std::u32string& text() const { return text_; }
  size_t cursor() const { return cursor_; }

 private:
  size_t WordLeft() const;
  size_t WordRight() const;

  std::u32string text_;
  size_t cursor_ = 0;
};

// Earlier lines, and the one being typed while looking at them. Bounded.
class LineHistory {
 public:
  static constexpr size_t kLinesMax = 500;

  void Add(const std::u32string& line);
  // What to show instead of `current`; nothing at either end.
  std::optional<std::u32string> Older(const std::u32string& current);
  std::optional<std::u32string> Newer();

 private:
  std::vector<std::u32string> lines_;
  size_t position_ = 0;      // lines_.size(): the typed line
  std::u32string typed_;
};

std::string ToUtf8(const std::u32string& text);
std::u32string FromUtf8(const std::string& text);  // bytes that are no UTF-8 become U+FFFD

}  // namespace meshnet::cli
