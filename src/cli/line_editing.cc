#include "cli/line_editing.h"

#include <map>

namespace meshnet::cli {
namespace {

using Kind = Key::Kind;

constexpr char32_t kReplacement = 0xfffd;
constexpr size_t kSequenceMax = 16;

Key Character(char32_t c) { return {Kind::kCharacter, c}; }

const std::map<unsigned char, Kind>& ControlKeys() {
  static const std::map<unsigned char, Kind> keys = {
      {0x01, Kind::kHome},       {0x02, Kind::kLeft},        {0x03, Kind::kInterrupt}, {0x04, Kind::kEndOfInput}, {0x05, Kind::kEnd},
      {0x06, Kind::kRight},      {0x08, Kind::kBackspace},   {0x0a, Kind::kEnter},     {0x0b, Kind::kKillToEnd},  {0x0c, Kind::kClearScreen},
      {0x0d, Kind::kEnter},      {0x0e, Kind::kDown},        {0x10, Kind::kUp},        {0x15, Kind::kKillToStart}, {0x17, Kind::kKillWord},
      {0x7f, Kind::kBackspace},
  };
  return keys;
}

// After ESC.
const std::map<std::string, Kind>& Sequences() {
  static const std::map<std::string, Kind> keys = {
      {"[A", Kind::kUp},    {"[B", Kind::kDown},   {"[C", Kind::kRight},  {"[D", Kind::kLeft},       {"[H", Kind::kHome},     {"[F", Kind::kEnd},
      {"OA", Kind::kUp},    {"OB", Kind::kDown},   {"OC", Kind::kRight},  {"OD", Kind::kLeft},       {"OH", Kind::kHome},     {"OF", Kind::kEnd},
      {"[1~", Kind::kHome}, {"[7~", Kind::kHome},  {"[4~", Kind::kEnd},   {"[8~", Kind::kEnd},       {"[3~", Kind::kDelete},
      {"b", Kind::kWordLeft}, {"f", Kind::kWordRight}, {"[1;5D", Kind::kWordLeft}, {"[1;5C", Kind::kWordRight},
      {"[1;3D", Kind::kWordLeft}, {"[1;3C", Kind::kWordRight}, {"\x7f", Kind::kKillWord},
  };
  return keys;
}

// Whether more bytes must follow ESC and these.
bool IsUnfinished(const std::string& sequence) {
  if (sequence.empty() || sequence == "[" || sequence == "O") return true;
  if (sequence[0] != '[') return false;
  unsigned char last = static_cast<unsigned char>(sequence.back());
  return last < 0x40 || last > 0x7e;
}

bool IsWordCharacter(char32_t c) { return c > 0x7f || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_'; }

}  // namespace

std::optional<Key> KeyParser::Feed(unsigned char byte) {
  if (!sequence_.empty()) {
    sequence_.push_back(static_cast<char>(byte));
    if (IsUnfinished(sequence_.substr(1)) && sequence_.size() < kSequenceMax) return std::nullopt;
    return FinishSequence();
  }
  return missing_ > 0 ? Continue(byte) : Plain(byte);
}

std::optional<Key> KeyParser::FinishSequence() {
  std::string sequence = sequence_.substr(1);
  sequence_.clear();
  if (sequence == "[200~") pasting_ = true;
  if (sequence == "[201~") pasting_ = false;
  auto found = Sequences().find(sequence);
  if (found == Sequences().end()) return std::nullopt;
  return Key{found->second, 0};
}

std::optional<Key> KeyParser::Plain(unsigned char byte) {
  if (byte == 0x1b) {
    sequence_ = "\x1b";
    return std::nullopt;
  }
  if (pasting_ && (byte == '\r' || byte == '\n')) return Character('\n');
  if (byte == '\t') return Character(' ');
  if (byte < 0x20 || byte == 0x7f) {
    auto found = ControlKeys().find(byte);
    if (found == ControlKeys().end() || pasting_) return std::nullopt;
    return Key{found->second, 0};
  }
  if (byte < 0x80) return Character(byte);
  if (byte >= 0xc2 && byte < 0xe0) {
    character_ = byte & 0x1f;
    missing_ = 1;
  } else if (byte >= 0xe0 && byte < 0xf0) {
    character_ = byte & 0x0f;
    missing_ = 2;
  } else if (byte >= 0xf0 && byte < 0xf5) {
    character_ = byte & 0x07;
    missing_ = 3;
  } else {
    return Character(kReplacement);
  }
  return std::nullopt;
}

std::optional<Key> KeyParser::Continue(unsigned char byte) {
  if ((byte & 0xc0) != 0x80) {
    missing_ = 0;
    // The broken character is dropped; this byte begins something new.
    return Plain(byte);
  }
  character_ = character_ << 6 | (byte & 0x3f);
  if (--missing_ > 0) return std::nullopt;
  return Character(character_);
}

size_t LineBuffer::WordLeft() const {
  size_t place = cursor_;
  while (place > 0 && !IsWordCharacter(text_[place - 1])) --place;
  while (place > 0 && IsWordCharacter(text_[place - 1])) --place;
  return place;
}

size_t LineBuffer::WordRight() const {
  size_t place = cursor_;
  while (place < text_.size() && !IsWordCharacter(text_[place])) ++place;
  while (place < text_.size() && IsWordCharacter(text_[place])) ++place;
  return place;
}

bool LineBuffer::Apply(const Key& key) {
  auto erase = [this](size_t begin, size_t end) {
    text_.erase(begin, end - begin);
    cursor_ = begin;
  };
  switch (key.kind) {
    case Kind::kCharacter:
      text_.insert(text_.begin() + static_cast<std::ptrdiff_t>(cursor_++), key.character);
      return true;
    case Kind::kBackspace:
      if (cursor_ > 0) erase(cursor_ - 1, cursor_);
      return true;
    case Kind::kDelete:
      if (cursor_ < text_.size()) erase(cursor_, cursor_ + 1);
      return true;
    case Kind::kLeft:
      cursor_ -= cursor_ > 0 ? 1 : 0;
      return true;
    case Kind::kRight:
      cursor_ += cursor_ < text_.size() ? 1 : 0;
      return true;
    case Kind::kWordLeft:
      cursor_ = WordLeft();
      return true;
    case Kind::kWordRight:
      cursor_ = WordRight();
      return true;
    case Kind::kHome:
      cursor_ = 0;
      return true;
    case Kind::kEnd:
      cursor_ = text_.size();
      return true;
    case Kind::kKillToEnd:
      erase(cursor_, text_.size());
      return true;
    case Kind::kKillToStart:
      erase(0, cursor_);
      return true;
    case Kind::kKillWord:
      erase(WordLeft(), cursor_);
      return true;
    case Kind::kEnter:
    case Kind::kUp:
    case Kind::kDown:
    case Kind::kInterrupt:
    case Kind::kEndOfInput:
    case Kind::kClearScreen:
      return false;
  }
  return false;
}

void LineBuffer::Set(std::u32string text) {
  text_ = std::move(text);
  cursor_ = text_.size();
}

void LineHistory::Add(const std::u32string& line) {
  if (!line.empty() && (lines_.empty() || lines_.back() != line)) lines_.push_back(line);
  if (lines_.size() > kLinesMax) lines_.erase(lines_.begin());
  position_ = lines_.size();
}

std::optional<std::u32string> LineHistory::Older(const std::u32string& current) {
  if (position_ == 0) return std::nullopt;
  if (position_ == lines_.size()) typed_ = current;
  return lines_[--position_];
}

std::optional<std::u32string> LineHistory::Newer() {
  if (position_ >= lines_.size()) return std::nullopt;
  return ++position_ == lines_.size() ? typed_ : lines_[position_];
}

std::string ToUtf8(const std::u32string& text) {
  std::string bytes;
  auto put = [&bytes](char32_t value) { bytes.push_back(static_cast<char>(value)); };
  for (char32_t c : text) {
    if (c < 0x80) {
      put(c);
    } else if (c < 0x800) {
      put(0xc0 | c >> 6);
      put(0x80 | (c & 0x3f));
    } else if (c < 0x10000) {
      put(0xe0 | c >> 12);
      put(0x80 | (c >> 6 & 0x3f));
      put(0x80 | (c & 0x3f));
    } else {
      put(0xf0 | c >> 18);
      put(0x80 | (c >> 12 & 0x3f));
      put(0x80 | (c >> 6 & 0x3f));
      put(0x80 | (c & 0x3f));
    }
  }
  return bytes;
}

std::u32string FromUtf8(const std::string& text) {
  std::u32string characters;
  for (size_t i = 0; i < text.size();) {
    unsigned char lead = static_cast<unsigned char>(text[i]);
    size_t length = lead < 0x80 ? 1 : lead >= 0xc2 && lead < 0xe0 ? 2 : lead >= 0xe0 && lead < 0xf0 ? 3 : lead >= 0xf0 && lead < 0xf5 ? 4 : 0;
    char32_t value = length == 1 ? lead : length == 2 ? lead & 0x1f : length == 3 ? lead & 0x0f : lead & 0x07;
    size_t used = 1;
    while (used < length && i + used < text.size() && (static_cast<unsigned char>(text[i + used]) & 0xc0) == 0x80) {
      value = value << 6 | (static_cast<unsigned char>(text[i + used++]) & 0x3f);
    }
    characters.push_back(length == 0 || used < length ? kReplacement : value);
    i += used;
  }
  return characters;
}

}  // namespace meshnet::cli
