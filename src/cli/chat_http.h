// Answers from a gateway over HTTP: chat completions as server-sent events.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cli/conversation.h"
#include "cli/url.h"

namespace meshnet::cli {

struct ChatEndpoint {
  Url url;
  std::string api_key;
  std::string model;  // empty: the gateway's own
};
std::unique_ptr<ChatBackend> CreateHttpBackend(const ChatEndpoint& endpoint);

// No gateway sends a larger event.
inline constexpr size_t kEventBytesMax = 16u << 20;

// Cuts a byte stream into the data of its events. Pure.
class EventSplitter {
 public:
  // Data of the events that `bytes` completed.
  std::vector<std::string> Feed(std::string_view bytes);
  // An event was larger than kEventBytesMax: nothing goes in or comes out any more.
  bool overflowed() const { return overflowed_; }

 private:
  bool overflowed_ = false;
  std::string line_;
  std::string data_;
};

}  // namespace meshnet::cli
