#include "cli/chat_http.h"

#include <cpp-httplib/httplib.h>

#include <atomic>
#include <thread>

namespace meshnet::cli {
namespace {

using nlohmann::ordered_json;

constexpr auto kConnectLimit = std::chrono::seconds(10);
// A gateway sends comments on a silent stream, so this much silence is a dead peer.
constexpr auto kSilenceLimit = std::chrono::seconds(300);
constexpr auto kAskPace = std::chrono::milliseconds(50);
constexpr size_t kErrorBodyMax = 1 << 20;

// Closes the connection once the person has had enough, also while nothing comes.
class CancelWatch {
 public:
  CancelWatch(httplib::Client& client, const std::function<bool()>& cancelled)
      : thread_([this, &client, cancelled] {
          while (!over_) {
            if (!seen_ && cancelled()) seen_ = true;
            if (seen_) client.stop();
            std::this_thread::sleep_for(kAskPace);
          }
        }) {}
  ~CancelWatch() {
    over_ = true;
    thread_.join();
  }
  bool seen() const { return seen_; }

 private:
  std::atomic<bool> over_{false};
  std::atomic<bool> seen_{false};
  std::thread thread_;
};

std::string MessageOf(const std::string& body) {
  ordered_json parsed = ordered_json::parse(body, nullptr, false);
  if (parsed.is_object() && parsed.contains("error") && parsed["error"].is_object()) {
    ordered_json message = parsed["error"].value("message", ordered_json());
    if (message.is_string()) return message.get<std::string>();
  }
  return body.substr(0, 500);
}

class HttpBackend : public ChatBackend {
 public:
  explicit HttpBackend(ChatEndpoint endpoint) : endpoint_(std::move(endpoint)) {}

  Status Answer(const ordered_json& given, const std::function<void(const AnswerPiece&)>& on_piece,
                const std::function<bool()>& cancelled) override {
    ordered_json body = given;
    if (!endpoint_.model.empty()) body["model"] = endpoint_.model;
    httplib::Client client(endpoint_.url.scheme_and_authority);
    client.set_connection_timeout(kConnectLimit);
    client.set_read_timeout(kSilenceLimit);
    if (!endpoint_.api_key.empty()) client.set_bearer_token_auth(endpoint_.api_key);

    Stream stream;
    CancelWatch watch(client, cancelled);
    httplib::Request request;
    request.method = "POST";
    request.path = endpoint_.url.path_prefix + "/v1/chat/completions";
    request.set_header("Content-Type", "application/json");
    request.set_header("Accept", "text/event-stream");
    request.body = body.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
    request.response_handler = [&stream](const httplib::Response& response) {
      stream.status = response.status;
      return true;
    };
    request.content_receiver = [&](const char* data, size_t size, size_t, size_t) { return Take(stream, {data, size}, on_piece) && !watch.seen(); };
    httplib::Result result = client.send(request);
    if (watch.seen()) return OkStatus();
    if (!stream.trouble.empty()) return Failure(stream.trouble);
    if (stream.status == 0) {
      return PeerUnreachable("no answer from " + endpoint_.url.scheme_and_authority + ": " + httplib::to_string(result.error()) +
                             "; is a gateway running there?");
    }
    if (stream.status != 200) return Failure(std::to_string(stream.status) + ": " + MessageOf(stream.error_body));
    if (!stream.done) return Failure("the answer broke off");
    return OkStatus();
  }

 private:
  struct Stream {
    int status = 0;
    EventSplitter splitter;
    std::string error_body;
    std::string trouble;
    bool done = false;
  };

  static bool Take(Stream& stream, std::string_view bytes, const std::function<void(const AnswerPiece&)>& on_piece) {
    if (stream.status != 200) {
      if (stream.error_body.size() < kErrorBodyMax) stream.error_body.append(bytes);
      return true;
    }
    const std::vector<std::string> events = stream.splitter.Feed(bytes);
    if (stream.splitter.overflowed()) {
      stream.trouble = "an event of more than " + std::to_string(kEventBytesMax >> 20) + " MiB came; is this a gateway?";
      return false;
    }
    for (const std::string& data : events) {
      if (data == "[DONE]") {
        stream.done = true;
        continue;
      }
      ordered_json event = ordered_json::parse(data, nullptr, false);
      if (event.is_object() && event.contains("error")) {
        stream.trouble = MessageOf(data);
        return false;
      }
      if (event.is_object()) on_piece(PieceOf(event));
    }
    return true;
  }

  ChatEndpoint endpoint_;
};

}  // namespace

std::vector<std::string> EventSplitter::Feed(std::string_view bytes) {
  std::vector<std::string> events;
  for (char byte : bytes) {
    if (overflowed_) break;
    if (byte != '\n') {
      line_.push_back(byte);
      if (line_.size() + data_.size() > kEventBytesMax) {
        overflowed_ = true;
        line_.clear(), data_.clear();
      }
      continue;
    }
    if (!line_.empty() && line_.back() == '\r') line_.pop_back();
    if (line_.empty()) {
      if (!data_.empty()) events.push_back(std::exchange(data_, {}));
    } else if (line_.rfind("data:", 0) == 0) {
      if (!data_.empty()) data_.push_back('\n');
      data_ += line_.substr(line_.size() > 5 && line_[5] == ' ' ? 6 : 5);
    }
    line_.clear();
  }
  return events;
}

std::unique_ptr<ChatBackend> CreateHttpBackend(const ChatEndpoint& endpoint) { return std::make_unique<HttpBackend>(endpoint); }

}  // namespace meshnet::cli
