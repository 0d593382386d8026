// A worker as a process: how it starts, what it survives, how it ends.
#include <gtest/gtest.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <thread>

#include "wire/address.h"
#include "wire/tls_authority_file.h"
#include "worker_bed.h"

namespace meshnet::conformance {
namespace {

using process::Eventually;
using std::chrono::milliseconds;
using std::chrono::seconds;

// A plain TCP connection; -1 when refused.
int Connect(const std::string& address) {
  Address parsed = *ParseAddress(address, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(parsed.port);
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0) return fd;
  close(fd);
  return -1;
}

void SendBytes(int fd, const std::string& bytes) { [[maybe_unused]] ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL); }

// 'R', 'S', 'T' for stopped, …
char StateOf(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string text((std::istreambuf_iterator<char>(stat)), std::istreambuf_iterator<char>());
  return text.substr(text.rfind(')') + 2, 1)[0];
}

// A file for the turn of workers; while one of them computes, its lock shows.
class TurnFile {
 public:
  TurnFile() {
    path_ = ::testing::TempDir() + "meshnet-turn-XXXXXX";
    fd_ = mkstemp(path_.data());
  }
  ~TurnFile() {
    close(fd_);
    unlink(path_.c_str());
  }
  const std::string& path() const { return path_; }
  bool WaitUntilTaken() const {
    return Eventually([this] {
      struct flock turn {};
      turn.l_type = F_WRLCK;
      turn.l_start = 1;
      turn.l_len = 1;
      return fcntl(fd_, F_OFD_GETLK, &turn) == 0 && turn.l_type != F_UNLCK;
    });
  }

 private:
  std::string path_;
  int fd_ = -1;
};

TEST(WorkerProcessTest, AnswersManySessionsAtOnceOverTwoStages) {
  process::StartOptions options;
  options.environment = {{"MESHNET_HOT_KV_MAX_SESSIONS", "64"}, {"MESHNET_HOT_KV_CONTEXT_TOKENS", "64"}, {"MESHNET_HOT_KV_BUDGET_TOKENS", "4096"}};
  WorkerProcess head_process({"--layers", "0:3", "--call-delay-ms", "3"}, options), tail_process({"--layers", "3:6", "--call-delay-ms", "3"}, options);
  std::unique_ptr<ShardLink> head = Link(head_process.Address()), tail = Link(tail_process.Address());
  const ShardDescription head_shard = MustDescribe(*head), tail_shard = MustDescribe(*tail);
  EXPECT_EQ(head_shard.model_root, tail_shard.model_root);

  constexpr size_t kTokens = 20;
  std::vector<std::thread> threads;
  std::vector<std::vector<Token>> answers(64), prompts(64);
  std::vector<std::string> errors(64);
  for (size_t i = 0; i < 64; ++i) {
    for (size_t t = 0; t <= i % 7; ++t) prompts[i].push_back(static_cast<Token>(i * 13 + t + 1));
    threads.emplace_back([&, i] {
      TwoStageSession session(*head, *tail, head_shard, tail_shard);
      answers[i] = session.Answer(prompts[i], kTokens);
      errors[i] = session.error();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < 64; ++i) {
    EXPECT_EQ(errors[i], "");
    EXPECT_EQ(answers[i], FakeAnswer(FakeModel(), prompts[i], kTokens, Greedy())) << "session " << i;
  }
  const ShardStats stats = std::get<ShardStats>(Stats(*tail));
  EXPECT_EQ(stats.steps_committed, 64 * kTokens);
  // Prefills run one by one; the 64 * 19 decodes in far fewer calls.
  EXPECT_LT(stats.engine_calls, 64 + 64 * (kTokens - 1) / 8);
}

TEST(WorkerProcessTest, AKilledWorkerIsAFaultAndItsReplacementIsFoundAndKnown) {
  auto worker = std::make_unique<WorkerProcess>(std::vector<std::string>{"--call-delay-ms", "600000"});
  const std::string address = worker->Address();
  std::unique_ptr<ShardLink> link = Link(address);
  const ShardDescription shard = MustDescribe(*link);
  TestSession session(*link, shard, 1), queued(*link, shard, 2);
  ASSERT_TRUE(session.Open());
  ASSERT_TRUE(queued.Open());
  std::vector<std::future<Reply<StepResult>>> steps;
  steps.push_back(session.Prefill({1, 2}, RowsWanted::kNone));
  for (Token token = 1; token <= 3; ++token) steps.push_back(queued.Prefill({token}, RowsWanted::kNone));
  worker->process().Signal(SIGKILL);
  for (auto& step : steps) {
    Reply<StepResult> reply = step.get();
    ASSERT_TRUE(std::holds_alternative<TransportFault>(reply));
    EXPECT_NE(std::get<TransportFault>(reply).message.find(address), std::string::npos);
  }
  EXPECT_TRUE(std::holds_alternative<TransportFault>(Describe(*link)));
  ASSERT_EQ(worker->process().Wait(), -SIGKILL);

  // The same port at once, another incarnation.
  worker = std::make_unique<WorkerProcess>(std::vector<std::string>{"--listen", address});
  ASSERT_EQ(worker->Address(), address);
  EXPECT_TRUE(Eventually([&] { return std::holds_alternative<ShardDescription>(Describe(*link)); }));
  EXPECT_NE(MustDescribe(*link).incarnation, shard.incarnation);
  Refusal refusal = std::get<Refusal>(session.Send(session.PrefillStep({3}, RowsWanted::kNone)).get());
  EXPECT_EQ(refusal.reason, Reason::kCacheMiss);
  EXPECT_EQ(refusal.detail, Detail::kIncarnation);
}

TEST(WorkerProcessTest, AStoppedWorkerIsAPassedDeadlineAndGoesOnWithoutDoublingAnything) {
  WorkerProcess worker({});
  std::unique_ptr<ShardLink> link = Link(worker.Address());
  TestSession session(*link, MustDescribe(*link), 1);
  ASSERT_TRUE(session.Open());
  session.MustPrefill({1, 2}, RowsWanted::kNone);
  worker.process().Signal(SIGSTOP);
  ASSERT_TRUE(Eventually([&] { return StateOf(worker.process().pid()) == 'T'; }));
  Step step = session.PrefillStep({3}, RowsWanted::kLast, Greedy());
  Reply<StepResult> late = SendOver(*link, step, std::chrono::steady_clock::now() + milliseconds(100)).get();
  EXPECT_TRUE(std::holds_alternative<TransportFault>(late));
  worker.process().Signal(SIGCONT);
  // The outcome was unknown: the same step again is the same step.
  StepResult result = std::get<StepResult>(SendOver(*link, step).get());
  EXPECT_EQ(result.past_len, PastLen(3));
  EXPECT_EQ(result.sampled.at(0).token, FakeAnswer(FakeModel(), std::vector<Token>{1, 2, 3}, 1, Greedy()).at(0));
  EXPECT_EQ(std::get<ShardStats>(Stats(*link)).tokens_committed, 3u);
}

TEST(WorkerProcessTest, ListensOnEveryFormOfAddress) {
  std::string folder = ::testing::TempDir() + "meshnet-listen-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string socket_path = folder + "/worker.sock";
  for (const std::string& listen : {std::string("127.0.0.1:0"), std::string("localhost:0"), std::string("[::1]:0"), "unix:" + socket_path}) {
    SCOPED_TRACE(listen);
    WorkerProcess worker({"--listen", listen});
    const std::string address = worker.Address();
    if (address.empty() && listen[0] == '[' && worker.process().err().find("Address family") != std::string::npos) continue;  // no IPv6 here
    ASSERT_NE(address, "") << worker.process().err();
    EXPECT_TRUE(ParseAddress(address, 0).ok());
    EXPECT_TRUE(std::holds_alternative<ShardDescription>(Describe(*Link(address))));
    if (listen == "localhost:0") {
      EXPECT_TRUE(std::holds_alternative<ShardDescription>(Describe(*Link("127.0.0.1:" + std::to_string(ParseAddress(address, 0)->port)))));
    }
  }
  EXPECT_TRUE(std::filesystem::exists(socket_path));  // the worker was killed
  {
    WorkerProcess again({"--listen", "unix:" + socket_path});
    EXPECT_EQ(again.Address(), "unix:" + socket_path);  // what a dead one left is no obstacle
    WorkerProcess second({"--listen", "unix:" + socket_path});
    EXPECT_EQ(second.process().Wait(), 3);
    again.process().Signal(SIGTERM);
    EXPECT_EQ(again.process().Wait(), 0);
  }
  EXPECT_FALSE(std::filesystem::exists(socket_path));
  std::filesystem::remove_all(folder);
}

TEST(WorkerProcessTest, RefusesABadOrTakenAddressBeforeTheModelIsRead) {
  WorkerProcess first({});
  const std::string taken = first.Address();
  const std::string port = std::to_string(ParseAddress(taken, 0)->port);
  struct Row {
    std::vector<std::string> flags;
    int code;
    std::string says;
  } rows[] = {
      {{"--listen", taken}, 3, "cannot listen on " + taken + ": another process"},
      {{"--listen", "localhost:" + port}, 3, "localhost:" + port},  // IPv4 is taken though IPv6 may be free
      {{"--listen", "[::]:" + port, "--insecure"}, 3, "[::]:" + port},
      {{"--listen", "host:99999"}, 2, "\"host:99999\""},
      {{"--listen", "0.0.0.0:0"}, 7, "--tls-cert"},
      {{"--listen", "no-such-host.invalid:1"}, 3, "no-such-host.invalid:1"},
      {{"--listen", "unix:/nowhere/x.sock"}, 3, "/nowhere/x.sock"},
      {{"--tls-cert", "/nowhere.pem"}, 3, "--tls-key"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.says);
    std::vector<std::string> flags = row.flags;
    flags.insert(flags.end(), {"--load-delay-ms", "600000"});  // would be noticed
    WorkerProcess worker(flags);
    EXPECT_EQ(worker.process().Wait(), row.code) << worker.process().err();
    EXPECT_NE(worker.process().err().find(row.says), std::string::npos) << worker.process().err();
    EXPECT_EQ(worker.process().out(), "");
  }
  EXPECT_TRUE(std::holds_alternative<ShardDescription>(Describe(*Link(taken))));  // the first one noticed nothing
}

TEST(WorkerProcessTest, SaysWhenTheModelCannotBeRead) {
  WorkerProcess worker({"--fail-to-load"});
  EXPECT_EQ(worker.process().Wait(), 5);
  EXPECT_NE(worker.process().err().find("cannot be read"), std::string::npos);
  process::StartOptions options;
  options.environment = {{"MESHNET_HOT_KV_TTL_SECONDS", "-5"}};
  WorkerProcess bad({}, options);
  EXPECT_EQ(bad.process().Wait(), 3);
  EXPECT_NE(bad.process().err().find("MESHNET_HOT_KV_TTL_SECONDS"), std::string::npos);
}

TEST(WorkerProcessTest, ASignalLetsSessionsFinishThenEndsWell) {
  WorkerProcess worker({"--drain-quiet-ms", "600000", "--drain-limit-ms", "600000"});
  std::unique_ptr<ShardLink> link = Link(worker.Address());
  const ShardDescription shard = MustDescribe(*link);
  TestSession session(*link, shard, 1);
  ASSERT_TRUE(session.Open());
  session.MustPrefill({1, 2}, RowsWanted::kLast, Greedy());
  worker.process().Signal(SIGTERM);
  ASSERT_TRUE(Eventually([&] { return MustDescribe(*link).state == ShardState::kDraining; }));
  EXPECT_EQ(std::get<Refusal>(TestSession(*link, shard, 2).TryOpen()).reason, Reason::kDraining);
  std::vector<Token> answer;
  for (int i = 0; i < 5; ++i) answer.push_back(session.MustDecode(3).sampled.at(0).token);
  EXPECT_EQ(answer.size(), 5u);
  EXPECT_TRUE(worker.process().running());
  link->Release(session.key(), InAMinute(), [](Reply<ReleaseOutcome>) {});
  EXPECT_EQ(worker.process().Wait(), 0);
}

TEST(WorkerProcessTest, ADrainHasALimit) {
  WorkerProcess worker({"--drain-quiet-ms", "600000", "--drain-limit-ms", "50"});
  std::unique_ptr<ShardLink> link = Link(worker.Address());
  TestSession session(*link, MustDescribe(*link), 1);
  ASSERT_TRUE(session.Open());
  worker.process().Signal(SIGINT);
  EXPECT_EQ(worker.process().Wait(), 0);
}

TEST(WorkerProcessTest, ASecondSignalAndALostParentEndItAtOnce) {
  for (bool lifeline : {false, true}) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    fcntl(ends[1], F_SETFD, FD_CLOEXEC);
    TurnFile turn;
    WorkerProcess worker({"--call-delay-ms", "600000", "--turn", turn.path(), "--lifeline-fd", std::to_string(ends[0])});
    std::unique_ptr<ShardLink> link = Link(worker.Address());
    TestSession session(*link, MustDescribe(*link), 1);
    ASSERT_TRUE(session.Open());
    std::future<Reply<StepResult>> stuck = session.Prefill({1}, RowsWanted::kNone);  // ten minutes in one engine call
    ASSERT_TRUE(turn.WaitUntilTaken());
    if (lifeline) {
      close(ends[1]);
    } else {
      worker.process().Signal(SIGTERM);
      ASSERT_TRUE(Eventually([&] { return MustDescribe(*link).state == ShardState::kDraining; }));
      worker.process().Signal(SIGTERM);
    }
    EXPECT_EQ(worker.process().Wait(), 0);
    EXPECT_TRUE(std::holds_alternative<TransportFault>(stuck.get()));
    close(ends[0]);
    if (!lifeline) close(ends[1]);
  }
}

TEST(WorkerProcessTest, ASignalWhileTheModelLoadsEndsItAtOnce) {
  std::string folder = ::testing::TempDir() + "meshnet-load-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string address = "unix:" + folder + "/worker.sock";
  WorkerProcess worker({"--load-delay-ms", "600000", "--listen", address});
  // It answers before it has read anything.
  ASSERT_TRUE(Eventually([&] { return std::holds_alternative<ShardDescription>(Describe(*Link(address))); }));
  EXPECT_EQ(MustDescribe(*Link(address)).state, ShardState::kStarting);
  EXPECT_EQ(worker.process().out(), "");
  worker.process().Signal(SIGTERM);
  EXPECT_EQ(worker.process().Wait(), 0);
  EXPECT_FALSE(std::filesystem::exists(folder + "/worker.sock"));
  std::filesystem::remove_all(folder);
}

TEST(WorkerProcessTest, AFloodOfStrangeConnectionsHurtsNobody) {
  WorkerProcess worker({"--handshake-limit-ms", "500"});
  const std::string address = worker.Address();
  std::unique_ptr<ShardLink> link = Link(address);
  TestSession session(*link, MustDescribe(*link), 1);
  ASSERT_TRUE(session.Open(64));
  session.MustPrefill({1, 2}, RowsWanted::kLast, Greedy());
  const int descriptors = worker.descriptor_count();

  for (int i = 0; i < 1000; ++i) close(Connect(address));
  const std::string hello("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + std::string(500, 'x'));
  std::string noise;
  for (uint64_t i = 0; i < (1 << 20); ++i) noise.push_back(static_cast<char>(i * i * 7919 >> 5));
  const std::string preface = std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") + std::string("\0\0\0\x04\0\0\0\0\0", 9);
  std::vector<int> held;
  for (const std::string& bytes : {hello, std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), noise, std::string("\0", 1)}) {
    held.push_back(Connect(address));
    SendBytes(held.back(), bytes);
  }
  for (int i = 0; i < 500; ++i) held.push_back(Connect(address));
  held.push_back(Connect(address));
  SendBytes(held.back(), preface);
  // The stream that was there goes on as if nothing were.
  std::vector<Token> expected = FakeAnswer(FakeModel(), std::vector<Token>{1, 2}, 6, Greedy());
  for (size_t i = 0; i + 1 < expected.size(); ++i) EXPECT_EQ(session.MustDecode(expected[i]).sampled.at(0).token, expected[i + 1]);
  // Newcomers are served too, and idle sockets go by themselves.
  EXPECT_TRUE(std::holds_alternative<ShardDescription>(Describe(*Link(address))));
  close(held.back());  // a well-behaved silent HTTP/2 client may stay; keepalive looks after it
  EXPECT_TRUE(Eventually([&] { return worker.descriptor_count() <= descriptors + 2; })) << worker.descriptor_count() << " was " << descriptors;
  for (int fd : held) close(fd);
  EXPECT_TRUE(worker.process().running());
  const std::string log = worker.process().err();
  EXPECT_LT(std::count(log.begin(), log.end(), '\n'), 15) << log;
}

TEST(WorkerProcessTest, OutOfDescriptorsIsNotTheEndOfTheListener) {
  // A limit that the flood reaches: the worker raises the soft limit to the hard one, so the hard one is lowered for it.
  process::StartOptions options;
  WorkerProcess limited({}, options);
  const std::string address = limited.Address();
  rlimit limit{100, 100};
  ASSERT_EQ(prlimit(limited.process().pid(), RLIMIT_NOFILE, &limit, nullptr), 0);
  std::vector<int> held;
  for (int i = 0; i < 300; ++i) held.push_back(Connect(address));
  for (int fd : held) {
    if (fd >= 0) close(fd);
  }
  EXPECT_TRUE(Eventually([&] { return std::holds_alternative<ShardDescription>(Describe(*Link(address))); }));
}

TEST(WorkerProcessTest, MutualTlsBetweenProcesses) {
  std::string folder = ::testing::TempDir() + "meshnet-mtls-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  auto issue = [&](const std::string& authority, const std::string& host, int days) {
    Result<IssuedCertificates> issued = IssueCertificates({.folder = folder + "/" + authority, .hosts = {host}, .valid_days = days});
    EXPECT_TRUE(issued.ok()) << issued.status().message();
    return TlsOptions{issued->certificates[0].certificate_path, issued->certificates[0].key_path, issued->authority_path, false};
  };
  const TlsOptions ours = issue("ours", "127.0.0.1,localhost", 1), gateway = issue("ours", "gateway", 1), foreign = issue("theirs", "gateway", 1);
  auto flags = [](const TlsOptions& tls, const std::string& listen) {
    return std::vector<std::string>{"--listen", listen, "--tls-cert", tls.certificate_path, "--tls-key", tls.key_path, "--tls-ca", tls.authority_path};
  };
  WorkerProcess worker(flags(ours, "0.0.0.0:0"));  // off loopback, which only TLS allows
  const std::string port = std::to_string(ParseAddress(worker.Address(), 0)->port);
  std::unique_ptr<ShardLink> link = Link("127.0.0.1:" + port, gateway);
  TestSession session(*link, MustDescribe(*link), 1);
  ASSERT_TRUE(session.Open());
  EXPECT_EQ(session.MustPrefill({1, 2}, RowsWanted::kNone).past_len, PastLen(2));
  TlsOptions stranger = foreign;
  stranger.authority_path = ours.authority_path;
  for (const TlsOptions& tls : {stranger, foreign, TlsOptions()}) {
    Reply<ShardDescription> reply = Describe(*Link("127.0.0.1:" + port, tls));
    ASSERT_TRUE(std::holds_alternative<TransportFault>(reply));
  }
  WorkerProcess expired(flags(issue("ours", "late", -1), "127.0.0.1:0"));
  EXPECT_EQ(expired.process().Wait(), 3);
  EXPECT_NE(expired.process().err().find("expired on"), std::string::npos);
  std::filesystem::remove_all(folder);
}

TEST(WorkerProcessTest, TheTurnOfAKilledWorkerIsFree) {
  TurnFile turn;
  WorkerProcess holder({"--turn", turn.path(), "--call-delay-ms", "600000"}), other({"--turn", turn.path()});
  std::unique_ptr<ShardLink> holder_link = Link(holder.Address()), other_link = Link(other.Address());
  TestSession stuck(*holder_link, MustDescribe(*holder_link), 1), waiting(*other_link, MustDescribe(*other_link), 1);
  ASSERT_TRUE(stuck.Open());
  ASSERT_TRUE(waiting.Open());
  std::future<Reply<StepResult>> holds = stuck.Prefill({1}, RowsWanted::kNone);
  ASSERT_TRUE(turn.WaitUntilTaken());
  std::future<Reply<StepResult>> waits = waiting.Prefill({1, 2}, RowsWanted::kNone);
  holder.process().Signal(SIGKILL);
  EXPECT_TRUE(std::holds_alternative<TransportFault>(holds.get()));
  EXPECT_TRUE(std::holds_alternative<StepResult>(waits.get()));
}

TEST(WorkerProcessTest, ServesOnWithoutAnybodyReadingItsLog) {
  process::StartOptions options;
  options.closed_fd = 2;
  WorkerProcess worker({}, options);
  std::unique_ptr<ShardLink> link = Link(worker.Address());
  TestSession session(*link, MustDescribe(*link), 1);
  ASSERT_TRUE(session.Open());
  EXPECT_EQ(session.MustPrefill({1, 2}, RowsWanted::kNone).past_len, PastLen(2));
  worker.process().Signal(SIGTERM);
  link->Release(session.key(), InAMinute(), [](Reply<ReleaseOutcome>) {});
  EXPECT_EQ(worker.process().Wait(), 0);
}

}  // namespace
}  // namespace meshnet::conformance
