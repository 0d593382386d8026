// Answers from a gateway over HTTP: chat completions as server-sent events.
#pragma once

#include <memory>
#include <string>

#include "cli/conversation.h"
#include "cli/url.h"

namespace meshnet::cli {

struct ChatEndpoint {
  Url url;
  std::string api_key;
  std::string model;  // empty: the gateway's own
};
std::unique_ptr<ChatBackend> CreateHttpBackend(const ChatEndpoint& endpoint);

// Cuts a byte stream into the data of its events. Pure.
class EventSplitter {
 public:
  // Data of the events that `bytes` completed.
  std::vector<std::string> Feed(std::string_view bytes);

 private:
  std::string line_;
  std::string data_;
};

}  // namespace meshnet::cli
