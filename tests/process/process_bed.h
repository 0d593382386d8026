// A folder, a cache and a temporary folder of its own for each test, tiny models in it, and HTTP to what was started.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "process/test_process.h"
#include "tiny/test_folder.h"
#include "tiny/tiny_model.h"

namespace meshnet::process {

struct HttpReply {
  int status = 0;
  std::string body;
};
HttpReply Get(const std::string& url, const std::string& path);
HttpReply Post(const std::string& url, const std::string& path, const nlohmann::json& body);

// A streamed completion on a thread of its own.
class Stream {
 public:
  Stream(const std::string& url, const nlohmann::json& body);
  ~Stream();
  // Events with text so far.
  size_t events() const;
  // Waits for its end. The text; `whole` tells whether it ended with [DONE] and without an error.
  std::string Finish(bool* whole);

 private:
  struct State;
  std::shared_ptr<State> state_;
  std::thread thread_;
};

class ProcessBed : public testing::Test {
 protected:
  void SetUp() override;

  std::string Path(const std::string& name) const { return folder_.File(name); }
  // A tiny llama with a tokenizer, written once per test. Deterministic.
  std::string TextModel();
  // One without a tokenizer.
  std::string PlainModel();
  std::string WriteModel(const tiny::TinyModelOptions& options, const std::string& name);

  // Where caches and temporary files of everything started here go.
  StartOptions Options() const;
  Finished Meshnet(const std::vector<std::string>& arguments) { return Meshnet(arguments, Options()); }
  Finished Meshnet(const std::vector<std::string>& arguments, const StartOptions& options);
  std::unique_ptr<TestProcess> Start(const std::vector<std::string>& arguments) { return Start(arguments, Options()); }
  std::unique_ptr<TestProcess> Start(const std::vector<std::string>& arguments, const StartOptions& options);

  // `meshnet serve …` on a free port with two threads at most; waits for its URL on stdout. Empty when it ended before.
  struct Server {
    std::unique_ptr<TestProcess> process;
    std::string url;
  };
  Server Serve(const std::vector<std::string>& arguments) { return Serve(arguments, Options()); }
  Server Serve(const std::vector<std::string>& arguments, const StartOptions& options);

  // The whole text of a streamed completion; the test fails when it does not end well.
  std::string Answer(const std::string& url, const nlohmann::json& body);
  // The worker of a stage, as status tells it; null when status has none.
  nlohmann::json WorkerStatus(const std::string& url, size_t stage);

  // Names left in the temporary folder of the started programs.
  std::vector<std::string> TemporaryNames() const;

  tiny::TestFolder folder_;
};

// A greedy completion of `tokens` tokens that does not end early.
nlohmann::json Completion(const std::string& prompt, int tokens);

}  // namespace meshnet::process
