#include <cpp-httplib/httplib.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "cli/bench_target.h"
#include "cli/chat_http.h"
#include "cli/test_prompts.h"

namespace meshnet::cli {
namespace {

using nlohmann::ordered_json;

constexpr auto kReadLimit = std::chrono::seconds(600);

class HttpTarget : public BenchTarget {
 public:
  HttpTarget(std::string name, std::string address, const Clock& clock, uint32_t vocabulary_size)
      : name_(std::move(name)), address_(std::move(address)), clock_(clock), vocabulary_size_(vocabulary_size) {}

  const std::string& name() const override { return name_; }

  Result<BurstTimes> Burst(const BurstShape& shape) override {
    return BurstOfThreads(name_, shape, clock_, [&](uint32_t session, Time start, std::vector<double>* times) {
      return Stream(shape, session, start, times);
    });
  }

 private:
  // One time for each token; characters of several tokens come together, so their times are spread over the gap before them.
  std::string Stream(const BurstShape& shape, uint32_t session, Time start, std::vector<double>* times) const {
    ordered_json body = {{"prompt", TestTokens(shape.prompt_tokens, shape.number * 1000 + session, vocabulary_size_)},
                         {"max_tokens", shape.generated_tokens}, {"temperature", 0}, {"ignore_eos", true}, {"stream", true}};
    httplib::Client client("http://" + address_);
    client.set_read_timeout(kReadLimit);
    EventSplitter splitter;
    std::vector<double> arrivals;
    std::string other;
    int status = 0;
    bool done = false;
    httplib::Request request;
    request.method = "POST";
    request.path = "/v1/completions";
    request.set_header("Content-Type", "application/json");
    request.body = body.dump();
    request.response_handler = [&status](const httplib::Response& response) {
      status = response.status;
      return true;
    };
    request.content_receiver = [&](const char* data, size_t size, size_t, size_t) {
      if (status != 200) other.append(data, std::min<size_t>(size, 1000));
      double now = std::chrono::duration<double>(clock_.Now() - start).count();
      for (const std::string& event : splitter.Feed({data, size})) {
        if (event == "[DONE]") done = true;
        else if (event.find("\"error\"") != std::string::npos) other = event;
        else arrivals.push_back(now);
      }
      return true;
    };
    client.send(request);
    if (!done || !other.empty() || arrivals.empty()) return "HTTP " + std::to_string(status) + ": " + (other.empty() ? "broken off" : other.substr(0, 300));
    Spread(arrivals, shape.generated_tokens, times);
    return "";
  }

  // First and last arrival are exact; the tokens between stand at even distances when there are fewer events than tokens.
  static void Spread(const std::vector<double>& arrivals, uint32_t tokens, std::vector<double>* times) {
    if (arrivals.size() >= tokens) {
      times->assign(arrivals.begin(), arrivals.begin() + tokens);
      return;
    }
    for (uint32_t i = 0; i < tokens; ++i) {
      double share = tokens > 1 ? static_cast<double>(i) / (tokens - 1) : 0;
      times->push_back(arrivals.front() + share * (arrivals.back() - arrivals.front()));
    }
  }

  std::string name_;
  std::string address_;
  const Clock& clock_;
  uint32_t vocabulary_size_;
};

}  // namespace

std::unique_ptr<BenchTarget> CreateHttpTarget(const std::string& name, const std::string& address, const Clock& clock, uint32_t vocabulary_size) {
  return std::make_unique<HttpTarget>(name, address, clock, vocabulary_size);
}

}  // namespace meshnet::cli
