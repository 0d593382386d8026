// A client for tests that does exactly what it is told, byte by byte: half a request, a closed write side, a reader that stops.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <string_view>

namespace meshnet::gateway {

class RawHttpClient {
 public:
  // `address` is "127.0.0.1:PORT".
  explicit RawHttpClient(const std::string& address) {
    const size_t colon = address.rfind(':');
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(std::atoi(address.c_str() + colon + 1)));
    inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr);
    fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0;
  }
  ~RawHttpClient() { Close(); }
  RawHttpClient(const RawHttpClient&) = delete;
  RawHttpClient& operator=(const RawHttpClient&) = delete;

  bool connected() const { return connected_; }
  int fd() const { return fd_; }
  bool Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }
  void CloseWriteSide() { ::shutdown(fd_, SHUT_WR); }
  void Close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

  // Reads until `marker` was seen, the server closed, or the limit; returns everything read so far.
  const std::string& ReadUntil(std::string_view marker, std::chrono::milliseconds limit = std::chrono::seconds(20)) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    while (received_.find(marker) == std::string::npos && ReadSome(deadline)) {
    }
    return received_;
  }
  const std::string& ReadToEnd(std::chrono::milliseconds limit = std::chrono::seconds(20)) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    while (ReadSome(deadline)) {
    }
    return received_;
  }
  // One reply with a Content-Length, and what came before it was asked for is forgotten.
  std::string ReadReply() {
    ReadUntil("\r\n\r\n");
    const size_t head = received_.find("\r\n\r\n");
    if (head == std::string::npos) return received_;
    const size_t length_at = received_.find("Content-Length: ");
    const size_t length = length_at < head ? std::strtoul(received_.c_str() + length_at + 16, nullptr, 10) : 0;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (received_.size() < head + 4 + length && ReadSome(deadline)) {
    }
    const std::string reply = received_.substr(0, head + 4 + length);
    received_.erase(0, reply.size());
    return reply;
  }
  // The server closed its side (or broke the connection) within the limit.
  bool closed_by_server() const { return closed_; }

 private:
  bool ReadSome(std::chrono::steady_clock::time_point deadline) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    pollfd entry{fd_, POLLIN, 0};
    if (left <= 0 || ::poll(&entry, 1, static_cast<int>(left)) <= 0) return false;
    char bytes[65536];
    const ssize_t count = ::recv(fd_, bytes, sizeof(bytes), 0);
    if (count <= 0) {
      closed_ = true;
      return false;
    }
    received_.append(bytes, static_cast<size_t>(count));
    return true;
  }

  int fd_ = -1;
  bool connected_ = false, closed_ = false;
  std::string received_;
};

// The body of a reply; chunks are joined.
inline std::string BodyOf(const std::string& reply) {
  const size_t head = reply.find("\r\n\r\n");
  if (head == std::string::npos) return "";
  std::string body = reply.substr(head + 4);
  if (reply.find("Transfer-Encoding: chunked") > head) return body;
  std::string joined;
  size_t at = 0;
  for (;;) {
    const size_t line = body.find("\r\n", at);
    if (line == std::string::npos) return joined;
    const size_t length = std::strtoul(body.c_str() + at, nullptr, 16);
    if (length == 0) return joined;
    joined += body.substr(line + 2, length);
    at = line + 2 + length + 2;
  }
}

inline int StatusOf(const std::string& reply) { return reply.size() > 12 ? std::atoi(reply.c_str() + 9) : 0; }

}  // namespace meshnet::gateway
