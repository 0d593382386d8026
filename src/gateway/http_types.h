// HTTP as the gateway's handlers see it: plain requests and replies, and the client's end of the connection. No library shows through.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace meshnet::gateway {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string id;              // the client's x-request-id, or a fresh one
  std::string method;
  std::string path;            // decoded, without the query
  std::string body;            // empty when only the head was read so far
  std::string client_address;  // without the port
  HttpHeaders headers;

  // The first value of a header, its name in any case; empty when absent.
  std::string Header(std::string_view name) const;
};

enum class PeerState {
  kOpen,
  kHalfClosed,  // it will send no more. It may still read, or be gone: only writing to it tells
  kGone,
};

// The client's end of a connection while its request is answered. Thread-safe.
class Peer {
 public:
  virtual ~Peer() = default;
  virtual PeerState state() const = 0;
  // Blocks until `wake_fd` is readable, the state is no longer `known`, or `limit` is over; returns the state.
  virtual PeerState WaitFor(int wake_fd, PeerState known, Duration limit) const = 0;
};

class BodyWriter {
 public:
  virtual ~BodyWriter() = default;
  // Blocks while the client does not read, up to the server's limit. False: nothing more can be sent.
  virtual bool Write(std::string_view bytes) = 0;
};

struct HttpReply {
  int status = 200;
  HttpHeaders headers;
  std::string content_type = "application/json";
  std::string body;
  // When set, writes the body after the head went out, on the connection's thread. False ends the connection without a proper end.
  std::function<bool(BodyWriter&)> stream;
  // How the end of a streamed body is marked.
  enum class StreamEnd { kChunked, kConnectionClose } stream_end = StreamEnd::kChunked;
};

}  // namespace meshnet::gateway
