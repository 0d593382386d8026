// meshnet serve as a process: its life, its workers' deaths, its end.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/stat.h>

#include "process/process_bed.h"

namespace meshnet::process {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int kLong = 700;

class ServeTest : public ProcessBed {
 protected:
  // Two workers, numerics exact: an answer that had to be computed again is the same.
  Server ServeExact(const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {TextModel(), "--shards", "2", "--numerics", "exact"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Serve(arguments);
  }
  pid_t WorkerPid(const std::string& url, size_t stage) {
    const json worker = WorkerStatus(url, stage);
    return worker.is_null() ? -1 : worker["pid"].get<pid_t>();
  }
  bool NoneAlive(const std::vector<pid_t>& pids) {
    return std::none_of(pids.begin(), pids.end(), IsAlive);
  }
};

TEST_F(ServeTest, AnswersAndEndsCleanlyOnSigterm) {
  Server server = Serve({TextModel(), "--shards", "3"});
  EXPECT_EQ(Get(server.url, "/readyz").status, 200);
  std::vector<pid_t> workers = ChildrenOf(server.process->pid());
  EXPECT_EQ(workers.size(), 3u);
  EXPECT_EQ(TemporaryNames().size(), 1u);
  struct stat info;
  ASSERT_EQ(stat(Path("tmp/" + TemporaryNames().front()).c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);

  json body = {{"messages", {{{"role", "user"}, {"content", "hello"}}}}, {"max_tokens", 8}, {"temperature", 0}};
  HttpReply reply = Post(server.url, "/v1/chat/completions", body);
  EXPECT_EQ(reply.status, 200) << reply.body;
  Finished status = Meshnet({"status", "--url", server.url, "--json"});
  EXPECT_EQ(status.code, 0) << status.err;
  json parsed = json::parse(status.out);
  EXPECT_EQ(parsed["workers"].size(), 3u);
  Finished table = Meshnet({"status", "--url", server.url});
  EXPECT_THAT(table.out, HasSubstr("[0,"));
  Finished chat = Meshnet({"chat", "--url", server.url, "-p", "hello", "-n", "8", "--temp", "0"});
  EXPECT_EQ(chat.code, 0) << chat.err;
  EXPECT_EQ(chat.out, json::parse(reply.body)["choices"][0]["message"]["content"].get<std::string>() + "\n");

  server.process->Signal(SIGTERM);
  EXPECT_EQ(server.process->Wait(), 0) << server.process->err();
  EXPECT_TRUE(NoneAlive(workers));
  EXPECT_THAT(TemporaryNames(), ElementsAre());
}

TEST_F(ServeTest, AKilledWorkerIsAPauseAndTheAnswerIsTheSame) {
  Server server = ServeExact();
  json body = Completion("Once upon a time", kLong);
  std::string undisturbed = Answer(server.url, body);
  for (size_t stage : {0u, 1u}) {
    pid_t victim = WorkerPid(server.url, stage);
    ASSERT_GT(victim, 0);
    Stream stream(server.url, body);
    ASSERT_TRUE(Eventually([&] { return stream.events() > 20; }));
    kill(victim, SIGKILL);
    bool whole = false;
    std::string text = stream.Finish(&whole);
    EXPECT_TRUE(whole) << "stage " << stage << ": " << server.process->err();
    EXPECT_EQ(text, undisturbed) << "stage " << stage;
    EXPECT_TRUE(Eventually([&] { return Get(server.url, "/readyz").status == 200; }));
    EXPECT_NE(WorkerPid(server.url, stage), victim);
  }
  EXPECT_THAT(server.process->err(), testing::AllOf(HasSubstr("stage 0 [0,"), HasSubstr("stage 1 [")));
}

TEST_F(ServeTest, NoWorkerOutlivesAKilledParent) {
  Server server = Serve({TextModel(), "--shards", "3"});
  std::vector<pid_t> workers = ChildrenOf(server.process->pid());
  ASSERT_EQ(workers.size(), 3u);
  kill(workers[1], SIGSTOP);  // one that cannot notice anything
  server.process->Signal(SIGKILL);
  EXPECT_EQ(server.process->Wait(), -SIGKILL);
  EXPECT_TRUE(Eventually([&] { return NoneAlive(workers); }));
  // What it left behind goes with the next start.
  EXPECT_EQ(TemporaryNames().size(), 1u);
  EXPECT_EQ(Meshnet({"run", TextModel(), "--shards", "1", "-p", "x", "-n", "1", "-t", "1"}).code, 0);
  EXPECT_THAT(TemporaryNames(), ElementsAre());
}

TEST_F(ServeTest, AWorkerThatDiesTooOftenEndsItWithFour) {
  Server server = Serve({TextModel(), "--shards", "2"});
  std::vector<pid_t> killed;
  for (int i = 0; i < 6; ++i) {
    pid_t victim = -1;
    ASSERT_TRUE(Eventually([&] {
      if (!server.process->running()) return true;
      std::vector<pid_t> children = ChildrenOf(server.process->pid());
      // The one of stage 1 is known by its socket.
      for (pid_t child : children) {
        std::string command = tiny::TestFolder::Read("/proc/" + std::to_string(child) + "/cmdline");
        if (command.find("stage-1.sock") != std::string::npos && std::find(killed.begin(), killed.end(), child) == killed.end()) victim = child;
      }
      return victim > 0;
    })) << i;
    if (victim > 0) kill(victim, SIGKILL);
    killed.push_back(victim);
  }
  EXPECT_EQ(server.process->Wait(), 4) << server.process->err();
  EXPECT_THAT(server.process->err(), testing::AllOf(HasSubstr("stage 1 ["), HasSubstr("5 restarts in 60 s")));
  EXPECT_THAT(TemporaryNames(), ElementsAre());
}

TEST_F(ServeTest, AHungWorkerIsStartedAgainAndTheAnswerGoesOn) {
  Server server = ServeExact({"--silence-timeout", "3"});
  json body = Completion("Once upon a time", kLong);
  std::string undisturbed = Answer(server.url, body);
  pid_t victim = WorkerPid(server.url, 1);
  Stream stream(server.url, body);
  ASSERT_TRUE(Eventually([&] { return stream.events() > 20; }));
  kill(victim, SIGSTOP);
  bool whole = false;
  EXPECT_EQ(stream.Finish(&whole), undisturbed);
  EXPECT_TRUE(whole) << server.process->err();
  EXPECT_FALSE(IsAlive(victim));
  EXPECT_THAT(server.process->err(), HasSubstr("silent for 3 s"));
}

TEST_F(ServeTest, AWorkerThatHangsOrDiesWhileItLoadsIsStartedAgain) {
  for (int signal_number : {SIGSTOP, SIGKILL}) {
    std::unique_ptr<TestProcess> serve =
        Start({"serve", TextModel(), "--shards", "2", "--port", "0", "-t", "1", "--start-timeout", "10", "--silence-timeout", "3"});
    std::vector<pid_t> workers;
    ASSERT_TRUE(Eventually([&] { return (workers = ChildrenOf(serve->pid())).size() == 2 || !serve->running(); }));
    ASSERT_EQ(workers.size(), 2u) << serve->err();
    kill(workers[0], signal_number);
    EXPECT_TRUE(Eventually([&] { return serve->out().find('\n') != std::string::npos || !serve->running(); }));
    EXPECT_TRUE(serve->running()) << serve->err();
    EXPECT_FALSE(IsAlive(workers[0]));
    EXPECT_THAT(serve->err(), HasSubstr("starting it again"));
  }
}

TEST_F(ServeTest, SigtermLetsAnswersEndWhole) {
  Server server = Serve({TextModel(), "--shards", "2", "--drain-seconds", "120"});
  std::vector<pid_t> workers = ChildrenOf(server.process->pid());
  Stream stream(server.url, Completion("Once upon a time", kLong));
  ASSERT_TRUE(Eventually([&] { return stream.events() > 5; }));
  server.process->Signal(SIGTERM);
  bool whole = false;
  stream.Finish(&whole);
  EXPECT_TRUE(whole) << server.process->err();
  EXPECT_EQ(server.process->Wait(), 0);
  EXPECT_TRUE(NoneAlive(workers));
}

TEST_F(ServeTest, ASecondSigtermEndsItAtOnce) {
  Server server = Serve({TextModel(), "--shards", "2"});
  std::vector<pid_t> workers = ChildrenOf(server.process->pid());
  // A worker that stands still: this answer would never end.
  for (pid_t worker : workers) kill(worker, SIGSTOP);
  Stream stream(server.url, Completion("Once upon a time", kLong));
  server.process->Signal(SIGTERM);
  ASSERT_TRUE(Eventually([&] { return server.process->err().find("stopping") != std::string::npos; }));
  EXPECT_TRUE(server.process->running());
  server.process->Signal(SIGTERM);  // the workers stand still too and are not waited for
  EXPECT_EQ(server.process->Wait(std::chrono::seconds(20)), 0) << server.process->err();
  EXPECT_TRUE(NoneAlive(workers));
  EXPECT_THAT(TemporaryNames(), ElementsAre());
  bool whole = true;
  stream.Finish(&whole);
  EXPECT_FALSE(whole);
}

TEST_F(ServeTest, AnAnswerThatWouldNeverEndHasItsTimeAndNoMore) {
  Server server = Serve({TextModel(), "--shards", "2", "--drain-seconds", "1"});
  std::vector<pid_t> workers = ChildrenOf(server.process->pid());
  for (pid_t worker : workers) kill(worker, SIGSTOP);
  Stream stream(server.url, Completion("Once upon a time", kLong));
  ASSERT_TRUE(Eventually([&] { return Get(server.url, "/metrics").body.find("meshnet_requests_running 1") != std::string::npos; }));
  server.process->Signal(SIGTERM);
  EXPECT_EQ(server.process->Wait(std::chrono::seconds(20)), 0) << server.process->err();
  EXPECT_THAT(server.process->err(), HasSubstr("after the time they had"));
  EXPECT_TRUE(NoneAlive(workers));
  EXPECT_THAT(TemporaryNames(), ElementsAre());
  bool whole = true;
  stream.Finish(&whole);
  EXPECT_FALSE(whole);
}

TEST_F(ServeTest, TwoAtOnceCutOnceAndBothServe) {
  std::string model = TextModel();
  std::vector<std::string> arguments = {"serve", model, "--shards", "2", "--port", "0", "-t", "1"};
  std::unique_ptr<TestProcess> one = Start(arguments), other = Start(arguments);
  for (TestProcess* process : {one.get(), other.get()}) {
    ASSERT_TRUE(Eventually([process] { return process->out().find('\n') != std::string::npos || !process->running(); }));
    ASSERT_TRUE(process->running()) << process->err();
  }
  std::string url_one = one->out().substr(0, one->out().find('\n')), url_other = other->out().substr(0, other->out().find('\n'));
  EXPECT_EQ(Answer(url_one, Completion("hello", 8)), Answer(url_other, Completion("hello", 8)));
  // A third one wants a port that is in use: it ends with three and nobody notices.
  Finished third = Meshnet({"serve", model, "--shards", "2", "--port", url_one.substr(url_one.rfind(':') + 1)});
  EXPECT_EQ(third.code, 3) << third.err;
  EXPECT_EQ(Get(url_one, "/readyz").status, 200);
}

TEST_F(ServeTest, ServesFromAReadOnlyFolderWithoutACache) {
  std::filesystem::create_directory(Path("models"));
  std::filesystem::copy(TextModel(), Path("models/m ü 漢.gguf"));
  ASSERT_EQ(chmod(Path("models").c_str(), 0555), 0);
  StartOptions options = Options();
  options.unset = {"HOME", "XDG_CACHE_HOME"};
  options.environment = {{"TMPDIR", Path("tmp")}};
  options.folder = Path("models");
  Server server = Serve({"m ü 漢.gguf", "--shards", "2"}, options);
  EXPECT_EQ(Get(server.url, "/readyz").status, 200);
  EXPECT_THAT(server.process->err(), HasSubstr("XDG_CACHE_HOME"));
  server.process->Signal(SIGTERM);
  EXPECT_EQ(server.process->Wait(), 0);
  EXPECT_THAT(TemporaryNames(), ElementsAre());
  chmod(Path("models").c_str(), 0755);
  size_t files = static_cast<size_t>(std::distance(std::filesystem::directory_iterator(Path("models")), {}));
  EXPECT_EQ(files, 1u) << "nothing is written beside the model";
}

TEST_F(ServeTest, GoesOnWhenNobodyReadsItsLog) {
  StartOptions options = Options();
  options.closed_fd = 2;
  Server server = Serve({TextModel(), "--shards", "2"}, options);
  EXPECT_NE(Answer(server.url, Completion("hello", 8)), "");
  pid_t victim = WorkerPid(server.url, 1);
  ASSERT_GT(victim, 0);  // kill(-1) would end every process of the machine
  kill(victim, SIGKILL);
  EXPECT_TRUE(Eventually([&] { return Get(server.url, "/readyz").status != 200; }));
  EXPECT_TRUE(Eventually([&] { return Get(server.url, "/readyz").status == 200; }));
  server.process->Signal(SIGTERM);
  EXPECT_EQ(server.process->Wait(), 0);
}

TEST_F(ServeTest, ALongTemporaryPathFallsBackToLoopback) {
  std::string deep = Path("tmp/") + std::string(120, 'x');
  std::filesystem::create_directory(deep);
  StartOptions options = Options();
  options.environment["TMPDIR"] = deep;
  Server server = Serve({TextModel(), "--shards", "2"}, options);
  EXPECT_NE(Answer(server.url, Completion("hello", 8)), "");
}

TEST_F(ServeTest, WorkersAndGatewayByHandAreTheSameThing) {
  json cut = json::parse(Meshnet({"cut", TextModel(), "--shards", "2", "-o", Path("out"), "--json"}).out);
  std::string head = cut["shards"][0]["file"], tail = cut["shards"][1]["file"];
  json layers = cut["shards"][1]["layers"];
  std::string range = std::to_string(layers[0].get<int>()) + ":" + std::to_string(layers[1].get<int>());
  std::string socket = "unix:" + Path("tmp/w0.sock");
  std::unique_ptr<TestProcess> one = Start({"worker", "--shard", head, "--listen", socket, "-t", "1"});
  std::unique_ptr<TestProcess> other = Start({"worker", "--model", TextModel(), "--layers", range, "--listen", "unix:" + Path("tmp/w1.sock"), "-t", "1"});
  std::unique_ptr<TestProcess> gateway =
      Start({"gateway", "--route", "unix:" + Path("tmp/w1.sock") + "," + socket, "--vocab", head, "--listen", "127.0.0.1:0"});
  ASSERT_TRUE(Eventually([&] { return gateway->out().find('\n') != std::string::npos || !gateway->running(); }));
  ASSERT_TRUE(gateway->running()) << gateway->err() << one->err() << other->err();
  std::string url = gateway->out().substr(0, gateway->out().find('\n'));
  std::string text = Answer(url, Completion("hello", 16));
  Server server = Serve({TextModel(), "--shards", "2"});
  EXPECT_EQ(text, Answer(server.url, Completion("hello", 16)));
  for (TestProcess* process : {gateway.get(), one.get(), other.get()}) {
    process->Signal(SIGTERM);
    EXPECT_EQ(process->Wait(), 0) << process->err();
  }
}

TEST_F(ServeTest, AGatewayRefusesWorkersOfDifferentModels) {
  tiny::TinyModelOptions other = tiny::TextModelOptions();
  other.weights = tiny::WeightType::kQ8_0;
  other.seed = 7;
  std::string another = WriteModel(other, "another.gguf");
  std::unique_ptr<TestProcess> one = Start({"worker", "--model", TextModel(), "--layers", "0:2", "--listen", "unix:" + Path("tmp/w0.sock"), "-t", "1"});
  std::unique_ptr<TestProcess> two = Start({"worker", "--model", another, "--layers", "2:4", "--listen", "unix:" + Path("tmp/w1.sock"), "-t", "1"});
  Finished gateway = Meshnet({"gateway", "--route", "unix:" + Path("tmp/w0.sock") + ",unix:" + Path("tmp/w1.sock"), "--vocab", TextModel(), "--listen",
                              "127.0.0.1:0", "--connect-timeout", "60"});
  EXPECT_EQ(gateway.code, 7) << gateway.err;
}

}  // namespace
}  // namespace meshnet::process
