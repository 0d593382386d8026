// Who dies in the middle of answers, by kill -9: a gateway of its own, and workers while they still read long prompts.
#include <gmock/gmock.h>
#include <signal.h>

#include "process/process_bed.h"

namespace meshnet::process {
namespace {

using nlohmann::json;

class FailoverTest : public ProcessBed {
 protected:
  // "unix:" addresses of the workers of a two-way split, one session each.
  std::vector<std::string> StartWorkers() {
    std::vector<std::string> addresses;
    for (const char* layers : {"0:2", "2:4"}) {
      addresses.push_back("unix:" + Path("tmp/worker" + std::to_string(addresses.size()) + ".sock"));
      workers_.push_back(Start({"worker", "--model", TextModel(), "--layers", layers, "--listen", addresses.back(), "-t", "1", "--numerics", "exact",
                                "--hot-kv-max-sessions", "1"}));
    }
    return addresses;
  }
  Server StartGateway(const std::vector<std::string>& workers) {
    Server gateway{Start({"gateway", "--route", workers[0] + "," + workers[1], "--vocab", TextModel(), "--listen", "127.0.0.1:0"}), ""};
    Eventually([&gateway] { return gateway.process->out().find('\n') != std::string::npos || !gateway.process->running(); });
    gateway.url = gateway.process->out().substr(0, gateway.process->out().find('\n'));
    EXPECT_NE(gateway.url, "") << gateway.process->err();
    return gateway;
  }
  size_t TokenCount(const std::string& url, const std::string& text) {
    return json::parse(Post(url, "/tokenize", {{"content", text}}).body)["tokens"].size();
  }

  std::vector<std::unique_ptr<TestProcess>> workers_;
};

TEST_F(FailoverTest, AKilledGatewayLeavesItsWorkersToTheNext) {
  const std::vector<std::string> workers = StartWorkers();
  const json body = Completion("Once upon a time", 500);
  std::string undisturbed;
  {
    Server first = StartGateway(workers);
    undisturbed = Answer(first.url, body);
    Stream stream(first.url, body);
    ASSERT_TRUE(Eventually([&] { return stream.events() > 20; }));
    first.process->Signal(SIGKILL);
    EXPECT_EQ(first.process->Wait(), -SIGKILL);
    bool whole = true;
    stream.Finish(&whole);
    EXPECT_FALSE(whole);
  }
  // The workers hold its session still, and have no room for another beside it.
  Server second = StartGateway(workers);
  EXPECT_EQ(Answer(second.url, body), undisturbed);
  for (const std::unique_ptr<TestProcess>& worker : workers_) {
    EXPECT_TRUE(worker->running()) << worker->err();
    worker->Signal(SIGTERM);
    EXPECT_EQ(worker->Wait(), 0) << worker->err();
  }
}

TEST_F(FailoverTest, AWorkerKilledInThePrefillOfManyStreamsIsAPauseForAll) {
  constexpr size_t kStreams = 6;
  // Small chunks: a prompt takes a while, and the figures that tell how far it is come between two of them.
  const std::vector<std::string> arguments = {TextModel(), "--shards", "3", "--numerics", "exact", "-ub", "4", "-c", "1024",
                                              "--hot-kv-max-sessions", std::to_string(kStreams)};
  std::vector<json> bodies;
  std::vector<std::string> undisturbed;
  size_t tokens = 0;  // of all prompts
  {
    Server server = Serve(arguments);
    for (size_t i = 0; i < kStreams; ++i) {
      std::string prompt = "Story " + std::to_string(i) + ".";
      while (TokenCount(server.url, prompt) < 500) prompt += " Once upon a time there was a house by the sea, and nobody lived in it.";
      tokens += TokenCount(server.url, prompt);
      bodies.push_back(Completion(prompt, 16));
      undisturbed.push_back(Answer(server.url, bodies.back()));
    }
  }
  struct Row {
    size_t stage;
    double part;  // of the prompts, that the stage has read when it dies
  };
  for (const Row& row : {Row{0, 0.1}, Row{1, 0.5}, Row{2, 0.9}}) {
    SCOPED_TRACE(row.stage);
    Server server = Serve(arguments);  // without sessions
    std::vector<std::unique_ptr<Stream>> streams;
    for (const json& body : bodies) streams.push_back(std::make_unique<Stream>(server.url, body));
    size_t read = 0;
    pid_t victim = -1;
    ASSERT_TRUE(Eventually([&] {
      const json worker = WorkerStatus(server.url, row.stage);
      if (!worker.is_object()) return false;
      victim = worker.value("pid", -1);
      read = worker.value("kv_tokens_used", size_t{0});
      return static_cast<double>(read) >= row.part * static_cast<double>(tokens);
    }));
    ASSERT_GT(victim, 0);  // kill(-1) would end every process of the machine
    kill(victim, SIGKILL);
    EXPECT_LT(read, tokens) << "no prompt was being read any more";
    for (size_t i = 0; i < kStreams; ++i) {
      bool whole = false;
      EXPECT_EQ(streams[i]->Finish(&whole), undisturbed[i]) << i;
      EXPECT_TRUE(whole) << i << ": " << server.process->err();
    }
    EXPECT_TRUE(server.process->running());
    EXPECT_TRUE(Eventually([&] { return Get(server.url, "/readyz").status == 200; }));
  }
}

}  // namespace
}  // namespace meshnet::process
