#include "process/process_bed.h"

#include <cpp-httplib/httplib.h>
#include <signal.h>

#include <atomic>
#include <mutex>

namespace meshnet::process {
namespace {

using nlohmann::json;

std::vector<std::string> CommandOf(const std::vector<std::string>& arguments, const StartOptions& options) {
  std::vector<std::string> command = options.wrapper;
  command.push_back(MESHNET_PROGRAM);
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

}  // namespace

HttpReply Get(const std::string& url, const std::string& path) {
  httplib::Client client(url);
  client.set_read_timeout(std::chrono::seconds(30));
  httplib::Result result = client.Get(path);
  return result ? HttpReply{result->status, result->body} : HttpReply{};
}

HttpReply Post(const std::string& url, const std::string& path, const json& body) {
  httplib::Client client(url);
  client.set_read_timeout(std::chrono::seconds(60));
  httplib::Result result = client.Post(path, body.dump(), "application/json");
  return result ? HttpReply{result->status, result->body} : HttpReply{};
}

struct Stream::State {
  mutable std::mutex mutex;
  std::string text;
  std::string pending;
  size_t events = 0;
  bool done = false;
  bool failed = false;

  void Take(const std::string& line) {
    if (line.rfind("data: ", 0) != 0) return;
    if (line == "data: [DONE]") {
      done = true;
      return;
    }
    json event = json::parse(line.substr(6), nullptr, false);
    if (!event.is_object() || event.contains("error")) {
      failed = true;
      return;
    }
    if (event["choices"].empty() || !event["choices"][0].contains("text")) return;
    std::string piece = event["choices"][0]["text"];
    events += piece.empty() ? 0 : 1;
    text += piece;
  }
};

Stream::Stream(const std::string& url, const json& body) : state_(std::make_shared<State>()) {
  thread_ = std::thread([state = state_, url, body] {
    httplib::Client client(url);
    client.set_read_timeout(std::chrono::seconds(120));
    httplib::Request request;
    request.method = "POST";
    request.path = "/v1/completions";
    request.set_header("Content-Type", "application/json");
    request.body = body.dump();
    request.content_receiver = [state](const char* data, size_t size, size_t, size_t) {
      std::lock_guard<std::mutex> lock(state->mutex);
      state->pending.append(data, size);
      for (size_t end; (end = state->pending.find('\n')) != std::string::npos;) {
        state->Take(state->pending.substr(0, end));
        state->pending.erase(0, end + 1);
      }
      return true;
    };
    client.send(request);
  });
}

Stream::~Stream() {
  if (thread_.joinable()) thread_.join();
}

size_t Stream::events() const {
  std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->events;
}

std::string Stream::Finish(bool* whole) {
  thread_.join();
  *whole = state_->done && !state_->failed;
  return state_->text;
}

void ProcessBed::SetUp() {
  signal(SIGPIPE, SIG_IGN);  // a server that goes away is what many of these tests are about
  for (const char* name : {"cache", "tmp", "files"}) std::filesystem::create_directory(Path(name));
}

std::string ProcessBed::TextModel() {
  tiny::TinyModelOptions options = tiny::TextModelOptions();
  options.weights = tiny::WeightType::kQ8_0;
  return WriteModel(options, "text.gguf");
}

std::string ProcessBed::PlainModel() {
  tiny::TinyModelOptions options;
  options.weights = tiny::WeightType::kQ8_0;
  return WriteModel(options, "plain.gguf");
}

std::string ProcessBed::WriteModel(const tiny::TinyModelOptions& options, const std::string& name) {
  std::string path = Path(name);
  if (std::filesystem::exists(path)) return path;
  Status written = tiny::WriteTinyModel(options, path);
  EXPECT_TRUE(written.ok()) << written.message();
  return path;
}

StartOptions ProcessBed::Options() const {
  StartOptions options;
  options.environment = {{"XDG_CACHE_HOME", Path("cache")}, {"TMPDIR", Path("tmp")}, {"HOME", folder_.path()}};
  return options;
}

Finished ProcessBed::Meshnet(const std::vector<std::string>& arguments, const StartOptions& options) {
  return RunToEnd(CommandOf(arguments, options), options, Path("files"));
}

std::unique_ptr<TestProcess> ProcessBed::Start(const std::vector<std::string>& arguments, const StartOptions& options) {
  return std::make_unique<TestProcess>(CommandOf(arguments, options), options, Path("files"));
}

ProcessBed::Server ProcessBed::Serve(const std::vector<std::string>& arguments, const StartOptions& options) {
  std::vector<std::string> all = {"serve", "--port", "0", "-t", "1"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  Server server{Start(all, options), ""};
  Eventually([&server] { return server.process->out().find('\n') != std::string::npos || !server.process->running(); });
  std::string out = server.process->out();
  server.url = out.substr(0, out.find('\n'));
  EXPECT_NE(server.url, "") << server.process->err();
  return server;
}

std::string ProcessBed::Answer(const std::string& url, const json& body) {
  bool whole = false;
  Stream stream(url, body);
  std::string text = stream.Finish(&whole);
  EXPECT_TRUE(whole);
  return text;
}

json ProcessBed::WorkerStatus(const std::string& url, size_t stage) {
  const json status = json::parse(Get(url, "/cluster/v1/status").body, nullptr, false);
  return status.is_object() && status["workers"].size() > stage ? status["workers"][stage] : json();
}

std::vector<std::string> ProcessBed::TemporaryNames() const {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(Path("tmp"))) names.push_back(entry.path().filename().string());
  return names;
}

json Completion(const std::string& prompt, int tokens) {
  return {{"prompt", prompt}, {"max_tokens", tokens}, {"temperature", 0}, {"ignore_eos", true}, {"stream", true}};
}

}  // namespace meshnet::process
